"""A file of prompts with images: they are looked at before anything is written, and decoded once."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.audit import files_opened
from support.limits import set_limits

from orchestrator.errors import UserError
from orchestrator.inference import __main__ as program
from orchestrator.inference.model import Model
from orchestrator.inference.texts import Continuation
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import VisionSpec


class Writer(Model):
    """A model without a network: it keeps what it is shown."""

    is_first, longest, vocab_size = True, None, 257  # type: ignore[assignment]  # what a network would say

    def __init__(self) -> None:
        data = SimpleNamespace(tokenizer=TokenizerSpec())
        vision = VisionSpec(image_size=8, patch_size=4)
        model = ModelSpec(num_layers=1, hidden_size=8, num_attention_heads=1, seq_length=32, vision=vision)
        job: Any = SimpleNamespace(model=model, data=data)
        super().__init__(SimpleNamespace(job=job), SimpleNamespace(iteration=1))  # type: ignore[arg-type]
        self.shown: list[int] = []

    def generate(self, prompts: Any, options: Any = None, *, images: Any = None, **more: Any) -> list[Continuation]:
        requests = self.requests(prompts, options, images)
        self.shown += [int(each.images.pixels[0].max()) for each in requests if each.images is not None]
        return [Continuation([], [], "", "end") for _ in prompts]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three lines, of which the second has no image."""
    lines: list[dict[str, Any]] = [{"prompt": "hello", "images": None}]
    for place, shade in ((0, 10), (2, 20)):
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(tmp_path / f"{shade}.png")
        lines.insert(place, {"prompt": "<image>", "images": [f"{shade}.png"]})
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "prompts.jsonl"


def asked(file: Path) -> Namespace:
    return Namespace(file=file, options={}, batch_size=2)


@pytest.mark.parametrize(("held", "reads"), [(1 << 20, 2), (3 * 64, 3), (0, 4)])
def test_images_are_read_once_as_far_as_they_can_be_kept(
    file: Path, held: int, reads: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_limits(monkeypatch, images_kept=held)
    model = Writer()
    with files_opened() as opened:
        program.continue_prompts(model, asked(file))
    assert (len([path for path in opened if path.suffix == ".png"]), model.shown) == (reads, [10, 20])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_every_damaged_image_is_told_before_the_first_line_is_written(file: Path) -> None:
    noise = np.random.RandomState(0).randint(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file.parent / "20.png")
    whole = (file.parent / "20.png").read_bytes()
    (file.parent / "20.png").write_bytes(whole[: len(whole) // 2])
    (file.parent / "10.png").write_text("no picture")
    model = Writer()
    with pytest.raises(UserError) as said:
        program.continue_prompts(model, asked(file))
    first, second = str(said.value).split("\n")
    assert first.startswith(f"{file}:1: image {file.parent / '10.png'} is not supported")
    assert second.startswith(f"{file}:3: image {file.parent / '20.png'} cannot be read")
    assert model.shown == []
