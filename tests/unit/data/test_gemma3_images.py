"""Conversations with images for Gemma 3: pixels, the text around an image, and data sets of other encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pictures import make_album, talk, written
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Gemma3ImageProcessorPil, Gemma3Processor, PreTrainedTokenizerFast
from transformers.image_utils import load_image

from orchestrator.data.chat.conversation_packing import PATCH
from orchestrator.data.chat.encoding import ChatEncoder
from orchestrator.data.chat.stored_images import images_problem
from orchestrator.data.chat.templates import PlainTemplate
from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.images import pixels
from orchestrator.data.missing_datasets import prepare
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.inference.images import IMAGE, seen, tokens_and_marks
from orchestrator.spec.sections.data import DataSpec, TokenizerSpec
from orchestrator.spec.vision import VisionSpec

EYES = VisionSpec(type="gemma3", image_size=16, patch_size=4, pooled_tokens=4)
BYTES = load_tokenizer(TokenizerSpec(type="byte_level"))


@pytest.mark.parametrize("shape", [(640, 480), (37, 100), (16, 16), (1, 1)])
def test_pixels_are_those_of_transformers(tmp_path: Path, shape: tuple[int, int]) -> None:
    """Distorted to a square, without a crop."""
    path = tmp_path / "image.png"
    draw = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    Image.fromarray(draw).save(path)
    processor = Gemma3ImageProcessorPil(
        size={"height": 16, "width": 16}, do_rescale=False, do_normalize=False, do_convert_rgb=True
    )
    theirs = np.asarray(processor(load_image(str(path)))["pixel_values"][0])
    assert np.array_equal(pixels(path, EYES), theirs)


def test_what_stands_around_an_image(tmp_path: Path) -> None:
    """In conversations and prompts alike, as Gemma 3's processor writes it."""
    line = written(make_album(tmp_path), talk("a<image>b", images=["a.jpg"])).read_bytes()
    encoded = ChatEncoder(BYTES, PlainTemplate(), EYES).encode(line, tmp_path)
    places = [place for place, mark in enumerate(encoded.mask) if mark == PATCH]
    assert len(places) == 4
    before, behind = bytes(encoded.ids[: places[0]]), bytes(encoded.ids[places[-1] + 1 : -1])
    assert before.endswith(b"a\n\n<start_of_image>")
    assert behind.startswith(b"<end_of_image>\n\nb")
    prompt = tokens_and_marks(BYTES, "a<image>b", EYES.kind.around)
    assert prompt == [*b"a\n\n<start_of_image>", IMAGE, *b"<end_of_image>\n\nb"]


def test_tokens_are_those_of_the_processor(tmp_path: Path) -> None:
    """Of a tokenizer that has Gemma's tokens: there the mark is the first of them."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": EYES.kind.token}
    tokenizer.add_special_tokens([*names.values(), "<eos>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    own = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path / "tokenizer.json")))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", extra_special_tokens=names)
    size = {"height": 16, "width": 16}
    processor = Gemma3Processor(Gemma3ImageProcessorPil(size=size), fast, image_seq_length=4)
    image = Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8))
    theirs = processor(images=[[image, image]], text=["a<start_of_image> b\n<start_of_image>c"])
    marks = tokens_and_marks(own, "a<image> b\n<image>c", EYES.kind.around)
    patch = own.token_id(EYES.kind.token)
    assert patch is not None
    ours, images = seen(marks, [np.zeros((3, 16, 16), dtype=np.uint8)] * 2, EYES, patch, "it")
    assert images is not None
    assert ours == theirs["input_ids"][0]
    assert [number == patch for number in ours] == [bool(each) for each in theirs["token_type_ids"][0]]


def test_a_data_set_is_for_one_encoder(tmp_path: Path) -> None:
    """A job prepares it for its own, and one with another is refused."""
    chats = written(make_album(tmp_path), talk("<image>?", images=["a.jpg"]), talk("<image>!", images=["b.png"]))
    prefix = tmp_path / "talks"
    data = DataSpec.model_validate(
        {"blend": [{"path": str(prefix), "text": str(chats)}], "chat": {"packing": False, "template": "plain"}}
    )
    prepare(data, 1, lambda line: None, vision=EYES)
    manifest, header = read_manifest(prefix), read_index(prefix)
    assert manifest is not None
    assert (manifest.images, manifest.image_encoder, manifest.pooled_tokens) == (2, "gemma3", 4)
    assert images_problem(str(prefix), header, EYES) is None
    for other in (EYES.model_copy(update={"pooled_tokens": 16}), VisionSpec(image_size=16, patch_size=4)):
        assert images_problem(str(prefix), header, other) is not None
