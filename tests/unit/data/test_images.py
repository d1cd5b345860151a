"""From files to the pixels that a model sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.data.images import pixels
from orchestrator.errors import UserError


def test_the_middle_of_an_image_is_seen(tmp_path: Path) -> None:
    """Three squares in a row, of which the middle one is blue; grey with half of it transparent; on its side."""
    row = np.zeros((10, 30, 3), dtype=np.uint8)
    row[:, :10, 0], row[:, 10:20, 2], row[:, 20:, 1] = 255, 255, 255
    Image.fromarray(row).save(tmp_path / "row.png")
    found = pixels(tmp_path / "row.png", 10)
    assert (found.shape, found.dtype) == ((3, 10, 10), np.uint8)
    assert (found == row[:, 10:20].transpose(2, 0, 1)).all()
    assert (pixels((tmp_path / "row.png").read_bytes(), 10) == found).all()
    assert pixels(tmp_path / "row.png", 20)[2].mean() > 240, "larger than it is"
    Image.fromarray(row[:, :, 0]).convert("LA").save(tmp_path / "grey.png")
    assert (np.ptp(pixels(tmp_path / "grey.png", 10), axis=0) == 0).all()
    exif = Image.Exif()
    exif[0x0112] = 6  # its right side is up
    Image.fromarray(row[:, ::3]).save(tmp_path / "lying.png", exif=exif)
    assert (pixels(tmp_path / "lying.png", 10)[:, 0] == [[255], [0], [0]]).all()


def test_what_is_no_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(UserError, match=r"image .*text\.png is none that Pillow reads"):
        pixels(tmp_path / "text.png", 8)
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        pixels(tmp_path, 8)
    Image.new("RGB", (50, 50), "red").save(tmp_path / "torn.png")
    (tmp_path / "torn.png").write_bytes((tmp_path / "torn.png").read_bytes()[:60])
    with pytest.raises(UserError, match=r"torn\.png cannot be read: .*truncated"):
        pixels(tmp_path / "torn.png", 8)
    Image.new("RGB", (1, 4000)).save(tmp_path / "line.png")
    with pytest.raises(UserError, match=r"line\.png has 1 x 4000 pixels: it is too long and narrow"):
        pixels(tmp_path / "line.png", 336)
