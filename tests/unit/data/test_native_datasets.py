"""Conversations with images of any size: what is stored of them, what a training reads, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pictures import talk, written
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.data.chat.conversation_packing import PATCH
from orchestrator.data.chat.encoding import ChatEncoder, chat_template
from orchestrator.data.damage import refuse_damage
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.images import pixels
from orchestrator.data.missing_datasets import tokenize_request
from orchestrator.data.samples.datasets import build_datasets
from orchestrator.data.source_survey import survey_job
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import VisionSpec

Tokenize = Callable[..., Path]
SIZES: dict[str, Any] = {
    "image_encoder": "qwen2.5",
    "image_size": 16,
    "patch_size": 2,
    "merge_size": 2,
    "smallest_image_size": 8,
}
NATIVE = {"smallest_image_size": 8, "attention_window_size": 8, "full_attention_layers": [1]}
VISION = VisionSpec.model_validate({"type": "qwen2.5", "image_size": 16, "patch_size": 2, "native_resolution": NATIVE})
LENGTH = 128


@pytest.fixture
def chats(album: Path) -> Path:
    """Six conversations with no, one and two images of different shapes, and one with three."""
    names = ("a.jpg", "b.png", "d.png", "more/f.png")
    given = [[], ["a.jpg"], ["more/f.png", "b.png"], ["d.png"], ["b.png", "a.jpg"], [], [*names[:3]]]
    return written(
        album, *[talk("<image>" * len(each), f"{len(each)}", images=each) for each in given if each], talk("a")
    )


@pytest.fixture
def prefix(tokenize: Tokenize, chats: Path) -> Path:
    return tokenize(chats, append_eod=False, chat=True, **SIZES)


def job_of(prefix: Path, **vision: Any) -> JobSpec:
    sees = {"image_size": 16, "patch_size": 2, "images_per_sequence": 2, "hidden_size": 32, "num_attention_heads": 2}
    shape = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": LENGTH}
    model = {
        **shape,
        "mrope_section": [4, 2, 2],
        "vision": {**sees, "type": "qwen2.5", "native_resolution": NATIVE, **vision},
    }
    data = {"blend": [{"path": str(prefix), "text": "x"}], "split": "1,0,0", "chat": {"packing": False}}
    batch, more = {"micro_batch_size": 2, "global_batch_size": 4}, {"optimizer": {"lr": 1e-3}}
    return JobSpec.model_validate(
        {"name": "x", "model": model, "batch": batch, "data": data, "schedule": {"train_iters": 9}, **more}
    )


def test_samples_hold_each_image_in_its_own_shape(
    process_group: None, prefix: Path, chats: Path, tmp_path: Path
) -> None:
    """The conversation with three images is left out."""
    job = job_of(prefix)
    assert [source.trouble for source in survey_job(job)] == [None]
    train = build_datasets(
        job.data,
        model=job.model,
        tokenizer=load_tokenizer(job.data.tokenizer),
        train_samples=5,
        validation_samples=0,
        test_samples=0,
        cache_dir=tmp_path / "cache",
    ).train
    shapes = []
    for number in range(5):
        item = train[number]
        assert (item["images"].shape, item["grids"].shape) == ((2 * 3 * 16 * 16,), (2, 2))
        tokens = item["grids"].prod(axis=1) // 4
        assert item["image_mask"].sum() == tokens.sum()
        shapes.append(tuple(map(tuple, item["grids"].tolist())))
        first = 0
        for rows, columns in item["grids"]:
            stored = item["images"][first : first + 12 * rows * columns].reshape(3, 2 * rows, 2 * columns)
            first += stored.size
            found = [name for name in NAMES if same(stored, pixels(chats.parent / name, VISION))]
            assert len(found) == int(rows > 0)
        assert not item["images"][first:].any()
    a, b, d, f = ((rows // 2, columns // 2) for rows, columns in map(sides, [chats.parent / name for name in NAMES]))
    assert len({a, d, f}) > 1
    assert sorted(shapes) == sorted([((0, 0), (0, 0)), (a, (0, 0)), (f, b), (d, (0, 0)), (b, a)])


NAMES = ("a.jpg", "b.png", "d.png", "more/f.png")


def same(pixels: Any, others: Any) -> bool:
    return pixels.shape == others.shape and bool((pixels == others).all())


def sides(path: Path) -> tuple[int, int]:
    _, rows, columns = pixels(path, VISION).shape
    return rows, columns


def test_what_is_made_for_a_job_fits_it_and_no_other(prefix: Path, chats: Path) -> None:
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert (manifest.images, manifest.merge_size, manifest.smallest_image_size) == (9, 2, 8)
    refuse_damage([prefix])
    job = job_of(prefix)
    [source] = survey_job(job)
    request = tokenize_request(source, job.data, 1, sentences=False, vision=job.model.vision)
    assert {name: getattr(request, name) for name in SIZES} == SIZES
    for vision in (
        {"image_size": 20},
        {"native_resolution": {**NATIVE, "smallest_image_size": 12}},
        {"patch_size": 1, "native_resolution": {**NATIVE, "merge_size": 4}},
    ):
        [source] = survey_job(job_of(prefix, **vision))
        assert "has images of any size" in str(source.trouble), vision


def test_tokens_around_images_are_written_once(album: Path, tmp_path: Path) -> None:
    """By a template that reads text, and one that writes them itself."""
    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|endoftext|>"]
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(alphabet, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(special)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path / "tokenizer.json")))
    names = {text: tokenizer.token_id(text) for text in special}
    encode = ChatEncoder(tokenizer, chat_template(tokenizer, "chatml"), VISION)
    for asked in ("<image>?", "<|vision_start|><image><|vision_end|>?"):
        line = written(tmp_path, talk(asked, "a", images=["a.jpg"])).read_bytes()
        found = encode.encode(line, album)
        places = np.flatnonzero(np.array(found.mask) == PATCH)
        assert len(places) == np.prod(sides(album / "a.jpg")) // 16
        assert {found.ids[place] for place in places} == {names["<|image_pad|>"]}
        around = (found.ids[places[0] - 1], found.ids[places[-1] + 1])
        assert around == (names["<|vision_start|>"], names["<|vision_end|>"])
        assert found.ids.count(names["<|vision_start|>"]) == 1
