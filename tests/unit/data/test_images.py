"""From files to the pixels that a model sees: transformers' own, and every file that is none."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, PngImagePlugin
from support.depth import examples
from support.limits import set_limits
from support.refused import refused
from transformers import CLIPImageProcessorPil
from transformers.image_utils import load_image

from orchestrator.data.input.images import pixels
from orchestrator.errors import MissingDependency, UserError
from orchestrator.spec.vision import VisionSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pixels")


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Smooth noise, so that JPEG keeps it, with sharp edges."""
    draw = np.random.RandomState(seed)
    coarse = Image.fromarray(draw.randint(0, 256, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    coarse.paste((255, 0, 0), (width // 3, 0, width // 2 + 1, height))
    return coarse.convert(mode)


def ours(path: Path, size: int) -> np.ndarray:
    return pixels(path, VisionSpec(image_size=size))


def theirs(path: Path, size: int) -> np.ndarray:
    """What LLaVA 1.5's processor makes of a file, before it normalises."""
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": size},
        crop_size={"height": size, "width": size},
        do_rescale=False,
        do_normalize=False,
        do_convert_rgb=True,
    )
    with Image.open(path) as image:
        found = np.asarray(processor(load_image(image))["pixel_values"][0])
    assert found.dtype == np.uint8
    return found


@pytest.mark.parametrize("size", [336, 224, 7])
@pytest.mark.parametrize("shape", [(640, 480), (333, 500), (336, 336), (100, 37), (1, 1), (11, 335), (1023, 336)])
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_pixels_are_those_of_transformers(tmp_path: Path, shape: tuple[int, int], size: int, ending: str) -> None:
    path = tmp_path / f"image.{ending}"
    noise(*shape).save(path)
    assert np.array_equal(ours(path, size), theirs(path, size))


SHAPES = st.tuples(st.integers(1, 90), st.integers(1, 90)).filter(lambda shape: max(shape) <= 32 * min(shape))


@given(SHAPES, st.integers(1, 60), st.integers(0, 99))
@settings(max_examples=examples(60))
def test_pixels_are_those_of_transformers_whatever_the_shape(
    folder: Path, shape: tuple[int, int], size: int, seed: int
) -> None:
    path = folder / "image.png"
    noise(*shape, seed=seed).save(path)
    assert np.array_equal(ours(path, size), theirs(path, size))


@pytest.mark.parametrize(
    ("mode", "ending"),
    [
        ("L", "png"),
        ("L", "jpg"),
        ("RGBA", "png"),
        ("P", "png"),
        ("P", "gif"),
        ("1", "png"),
        ("CMYK", "jpg"),
        ("LA", "png"),
    ],
)
def test_every_kind_of_colours_becomes_red_green_and_blue(tmp_path: Path, mode: str, ending: str) -> None:
    path = tmp_path / f"image.{ending}"
    noise(50, 40, mode).save(path)
    assert np.array_equal(ours(path, 28), theirs(path, 28))


def test_transparent_palettes_are_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    noise(50, 40, "P").save(path)
    opaque = ours(path, 28)
    noise(50, 40, "P").save(path, transparency=bytes(range(256)))
    assert np.array_equal(ours(path, 28), opaque)


def test_threads_leave_the_warnings_of_the_process_alone(tmp_path: Path) -> None:
    """What one turns off another would turn on again, or never."""
    path = tmp_path / "image.png"
    noise(50, 40, "P").save(path, transparency=bytes(range(256)))
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: ours(path, 28), range(200)))
    assert list(warnings.filters) == before


def test_no_more_is_kept_than_is_seen(tmp_path: Path) -> None:
    """Of an image that is scaled to 31 times as many pixels."""
    path = tmp_path / "long.png"
    noise(310, 10).save(path)
    found = pixels(path, VisionSpec(image_size=28))
    assert (found.base, found.flags.owndata, found.nbytes) == (None, True, 3 * 28 * 28)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_upright(tmp_path: Path, orientation: int) -> None:
    path, exif = tmp_path / "photo.jpg", Image.Exif()
    exif[0x0112] = orientation
    noise(60, 40).save(path, exif=exif)
    assert np.array_equal(ours(path, 28), theirs(path, 28))
    if orientation == 6:
        assert np.array_equal(ours(path, 40), np.rot90(ours(_without_exif(path, tmp_path), 40), 3, (1, 2)))


def _without_exif(path: Path, folder: Path) -> Path:
    Image.open(path).save(folder / "plain.png", exif=Image.Exif())
    return folder / "plain.png"


def test_the_middle_of_an_image_is_seen(tmp_path: Path) -> None:
    """Three squares in a row, of which the middle one is blue; grey with half of it transparent; on its side."""
    row = np.zeros((10, 30, 3), dtype=np.uint8)
    row[:, :10, 0], row[:, 10:20, 2], row[:, 20:, 1] = 255, 255, 255
    Image.fromarray(row).save(tmp_path / "row.png")
    found = pixels(tmp_path / "row.png", VisionSpec(image_size=10))
    assert (found.shape, found.dtype) == ((3, 10, 10), np.uint8)
    assert (found == row[:, 10:20].transpose(2, 0, 1)).all()
    assert (pixels((tmp_path / "row.png").read_bytes(), VisionSpec(image_size=10)) == found).all()
    assert pixels(tmp_path / "row.png", VisionSpec(image_size=20))[2].mean() > 240, "larger than it is"
    Image.fromarray(row[:, :, 0]).convert("LA").save(tmp_path / "grey.png")
    assert (np.ptp(pixels(tmp_path / "grey.png", VisionSpec(image_size=10)), axis=0) == 0).all()
    exif = Image.Exif()
    exif[0x0112] = 6  # its right side is up
    Image.fromarray(row[:, ::3]).save(tmp_path / "lying.png", exif=exif)
    assert (pixels(tmp_path / "lying.png", VisionSpec(image_size=10))[:, 0] == [[255], [0], [0]]).all()


def test_files_that_are_no_images(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jpg"
    noise(200, 200).save(whole)
    torn, text, empty, fifo = (tmp_path / name for name in ("torn.jpg", "text.jpg", "empty.png", "fifo.jpg"))
    torn.write_bytes(whole.read_bytes()[:1500])
    text.write_text("<html>404</html>")
    empty.touch()
    os.mkfifo(fifo)
    for path, refusal in {
        torn: ("unreadable_image", "torn.jpg"),
        text: ("unsupported_image_format", "text.jpg", "JPEG, PNG, WEBP, GIF, BMP and TIFF"),
        empty: ("unsupported_image_format", "empty.png"),
        fifo: ("unreadable_image", "fifo.jpg"),
        tmp_path: ("unreadable_image", os.strerror(errno.EISDIR)),
        tmp_path / "gone.jpg": ("unreadable_image", "gone.jpg", os.strerror(errno.ENOENT)),
    }.items():
        with refused(*refusal):
            pixels(path, VisionSpec(image_size=28))


def test_bombs_are_not_lit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is huge, nor what becomes so when it is scaled, nor text of a PNG. None of it is loaded."""
    path = tmp_path / "image.png"
    noise(60, 60).save(path)
    with monkeypatch.context() as patch:
        for most in (2000, 1000):  # a warning of Pillow's, and an error
            set_limits(patch, pixels_of_pillow=most)
            with refused("unreadable_image", "image.png", "2000 pixels"):
                pixels(path, VisionSpec(image_size=28))
            with warnings.catch_warnings():  # where it is a warning, and no more
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                with refused("unreadable_image", "image.png", "2000 pixels"):
                    pixels(path, VisionSpec(image_size=28))
        set_limits(patch, pixels_of_pillow=None)
        assert pixels(path, VisionSpec(image_size=28)).shape == (3, 28, 28)
    with refused("unreadable_image", "60 x 60", "3599 pixels"):
        pixels(path, VisionSpec(image_size=28), most=3599)
    assert pixels(path, VisionSpec(image_size=28), most=3600).shape == (3, 28, 28)
    for shape in ((1, 33), (790, 1), (1, 10_000)):
        noise(*shape).save(path)
        with refused("unreadable_image", f"{shape[0]} x {shape[1]} pixels", "336"):
            pixels(path, VisionSpec(image_size=336))
    information = PngImagePlugin.PngInfo()
    information.add_text("a", "x" * 2_000_000, zip=True)
    noise(60, 60).save(path, pnginfo=information)
    with refused("unreadable_image", "image.png"):
        pixels(path, VisionSpec(image_size=28))


def test_no_program_is_started_for_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript run a PostScript file."""
    script, started = tmp_path / "gs", tmp_path / "started"
    script.write_text(f"#!/bin/sh\ntouch {started}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    for name in ("image.eps", "image.jpg"):
        noise(60, 60).save(tmp_path / name, "eps")
        with refused("unsupported_image_format", "JPEG, PNG, WEBP, GIF, BMP and TIFF"):
            pixels(tmp_path / name, VisionSpec(image_size=28))
    assert not started.exists()


@given(st.binary(max_size=40), st.integers(0, 2000), st.sampled_from(["png", "jpeg", "gif", "webp", "bmp", "tiff"]))
@settings(max_examples=examples(150), deadline=None)
def test_damaged_images_have_pixels_or_a_reason(folder: Path, damage: bytes, place: int, kind: str) -> None:
    file = io.BytesIO()
    noise(32, 32).save(file, kind)
    content = bytearray(file.getvalue())
    content[place : place + len(damage)] = damage
    path = folder / "damaged"
    path.write_bytes(content)
    reason = None
    try:
        assert pixels(path, VisionSpec(image_size=8)).shape == (3, 8, 8)
    except UserError as error:
        reason = str(error)
    assert reason is None or reason.startswith(f"image {path} ")


def test_without_pillow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with refused("missing_dependency", "pillow", kind=MissingDependency):
        pixels(tmp_path / "a.jpg", VisionSpec(image_size=8))
