"""Where images stand in prompts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.refused import refused
from tokenizers import Tokenizer, models

from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.inference.images import IMAGE, each_with_images, seen, tokens_and_marks
from orchestrator.inference.requests import Request
from orchestrator.spec.generation import Generation
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import VisionSpec

EYES = VisionSpec(image_size=8, patch_size=4)
PICTURE = np.zeros((3, 8, 8), dtype=np.uint8)


def test_marks_become_images(tmp_path: Path) -> None:
    """What the tokenizer makes of the mark as text is not asked."""
    plain = load_tokenizer(TokenizerSpec(type="byte_level"))
    assert tokens_and_marks(plain, "a<image>b<image>") == [97, IMAGE, 98, IMAGE]
    assert tokens_and_marks(plain, "<image><image>") == [IMAGE, IMAGE]
    assert tokens_and_marks(plain, "a") == [97]
    knowing = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    knowing.add_special_tokens(["<image>"])
    knowing.save(str(tmp_path / "tokenizer.json"))
    own = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path / "tokenizer.json")))
    assert tokens_and_marks(own, "a<image>b<image>") == [0, IMAGE, 1, IMAGE]


def test_patches_take_the_place_of_images() -> None:
    tokens, images = seen([5, IMAGE, 6, IMAGE], [PICTURE, PICTURE + 1], EYES, 9, "it")
    assert tokens == [5, 9, 9, 9, 9, 6, 9, 9, 9, 9]
    assert images is not None
    assert (images.firsts, images.tokens) == ((1, 6), 8)
    assert images.pixels[1].max() == 1
    assert Request(0, tokens, Generation(), images).text == [5, 6], "a patch is no token that occurred"
    assert Request(0, tokens, Generation()).text == tokens
    assert seen([5, 9], [], EYES, 9, "it") == ([5, 9], None)


@pytest.mark.parametrize(
    ("tokens", "images", "vision", "refusal"),
    [
        ([5], [PICTURE], None, ("images_do_not_fit_prompt", "it has 1 image", "model.vision")),
        ([5], [PICTURE], EYES, ("images_do_not_fit_prompt", "it has 0 x <image>", "1 image")),
        ([IMAGE, IMAGE], [PICTURE], EYES, ("images_do_not_fit_prompt", "it has 2 x <image>", "1 image")),
        ([IMAGE], [], EYES, ("images_do_not_fit_prompt", "it has 1 x <image>", "0 images")),
        ([IMAGE], [PICTURE.astype(float)], EYES, ("not_an_image", "float64, [3, 8, 8]", "uint8")),
        (
            [IMAGE],
            [torch.zeros(3, 8, 8)],
            EYES,
            ("not_an_image", "torch.Tensor", "uint8"),
        ),
        ([IMAGE], [PICTURE[:, 1:]], EYES, ("not_an_image", "uint8, [3, 7, 8]", "uint8, [3, 8, 8]")),
        ([IMAGE], ["none.png"], EYES, ("unreadable_image", "none.png")),
        ([IMAGE], [b"no image"], EYES, ("unsupported_image_format", "JPEG, PNG")),
    ],
)
def test_what_is_wrong_is_told(
    tokens: list[int], images: list[Any], vision: VisionSpec | None, refusal: tuple[str, ...]
) -> None:
    with refused(*refusal):
        seen(tokens, images, vision, 9, "it")


def test_images_are_given_for_each_prompt() -> None:
    assert each_with_images(2, None, "prompts") == [(), ()]
    wrong: list[Any] = ["cat.jpg", ["cat.jpg", "dog.jpg"], [Path("cat.jpg")]]
    for images in wrong:
        with refused("images_not_a_list", "prompts"):
            each_with_images(2, images, "prompts")
    with refused("missing_image_lists", "2 prompts", "1 lists"):
        each_with_images(2, [[PICTURE]], "prompts")
