"""Images in prompts: where each stands among the tokens, and what of them a network takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orchestrator.data.chat.tokens import mark_token
from orchestrator.data.input.images import Pixels, pixels
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.inference.network import Network
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import MARK, VisionSpec, marks_problem

IMAGE = -200
"""An image in a list of token ids; LLaVA's own number for it."""

Image = str | Path | bytes | np.ndarray[Any, np.dtype[np.uint8]]
"""A file, what is in one, or pixels as they are: [3, size, size], uint8."""


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one prompt, in their order."""

    pixels: tuple[Pixels, ...]
    firsts: tuple[int, ...]
    """Which of the prompt's tokens is the first of each one's patches."""
    patches: int
    """Tokens that each takes."""

    @property
    def tokens(self) -> int:
        """Tokens that all of them take."""
        return len(self.firsts) * self.patches

    def text(self, tokens: Sequence[int]) -> list[int]:
        """The prompt's tokens that stand for no patch."""
        is_text = np.ones(len(tokens), dtype=bool)
        for first in self.firsts:
            is_text[first : first + self.patches] = False
        return [token for token, keeps in zip(tokens, is_text.tolist(), strict=True) if keeps]


def tokens_and_marks(tokenizer: Tokenizer, text: str, around: tuple[str, str] = ("", "")) -> list[int]:
    """Token ids of a text, `IMAGE` for each mark, with the texts `around` it: what stands between marks is a text of
    its own, but to a tokenizer that knows the mark. So it is in conversations that a model is trained on."""
    text = text.replace(MARK, MARK.join(around))
    own = mark_token(tokenizer)
    if own is not None:
        return [IMAGE if token == own else token for token in tokenizer.encode(text)]
    first, *others = (tokenizer.encode(part) for part in text.split(MARK))
    return [*first, *(token for part in others for token in (IMAGE, *part))]


def patch_token(tokenizer: Tokenizer | None, model: ModelSpec, vocab_size: int) -> int:
    """The token that keeps the place of a patch, whatever it is: the tokenizer's own, or what ends a document."""
    found = None
    if tokenizer is not None and model.has_vision:
        own = tokenizer.token_id(model.image_encoder.kind.token)
        found = tokenizer.end if own is None else own
    return found if found is not None and found < vocab_size else 0


def each_with_images(count: int, images: Sequence[Sequence[Image]] | None, what: str) -> list[Sequence[Image]]:
    """The images of each of `count` prompts, lists or the like, which `what` says. Raises UserError when they are given
    otherwise than a list for each."""
    if images is None:
        return [()] * count
    if isinstance(images, str | bytes) or any(isinstance(own, str | bytes | Path) for own in images):
        raise UserError(f"images: give a list of them for each of the {what}", code="images_not_a_list")
    if len(images) != count:
        raise UserError(
            f"{count} {what} have {len(images)} lists of images; give one for each", code="missing_image_lists"
        )
    return list(images)


def seen(
    tokens: Sequence[int], given: Sequence[Image], vision: VisionSpec | None, patch: int, what: str
) -> tuple[list[int], Images | None]:
    """Tokens with those of its patches, `patch`, in place of each `IMAGE`, and the images that stand there.

    Raises UserError, which begins with `what`, when there are not as many marks as images, the model sees none, or one
    of them is no image.
    """
    tokens = list(tokens)
    if problem := marks_problem(tokens.count(IMAGE), len(given), sees=vision is not None):
        raise UserError(f"{what} {problem}", code="images_do_not_fit_prompt")
    if vision is None or not given:
        return tokens, None
    placed: list[int] = []
    firsts: list[int] = []
    for token in tokens:
        if token == IMAGE:
            firsts.append(len(placed))
            placed += [patch] * vision.tokens_per_image
        else:
            placed.append(token)
    read = tuple(_pixels(image, vision) for image in given)
    return placed, Images(read, tuple(firsts), vision.tokens_per_image)


def _pixels(image: Image, vision: VisionSpec) -> Pixels:
    size = vision.image_size
    if not isinstance(image, np.ndarray):
        if not isinstance(image, str | Path | bytes):
            kind = f"{type(image).__module__}.{type(image).__name__}"
            raise UserError(
                f"a {kind} is not an image: give a file, its content, or uint8 [3, {size}, {size}]", code="not_an_image"
            )
        return pixels(Path(image) if isinstance(image, str) else image, size, kind=vision.kind)
    if image.shape != (3, size, size) or image.dtype != np.uint8:
        raise UserError(
            f"an array of {image.dtype}, {list(image.shape)}, is not an image: give uint8, [3, {size}, {size}]",
            code="not_an_image",
        )
    return image


def batch_of_images(network: Network, each: Sequence[Images | None], length: int) -> dict[str, torch.Tensor]:
    """What a network that sees takes beside tokens [b, s], s of them: `images` [b, n, 3, size, size], those of each row
    first, and `image_mask` [b, s]. Nothing where no row has any. A stage that embeds no tokens takes no images, and the
    mask only where attention asks for it."""
    given = [(row, own) for row, own in enumerate(each) if own is not None]
    embeds, masks = network.module.pre_process, network.job.model.attends_both_ways_in_images
    if not given or not (embeds or masks):
        return {}
    most = max(len(own.pixels) for _, own in given)
    images = np.zeros((len(each), most, *given[0][1].pixels[0].shape), dtype=np.uint8)
    mask = np.zeros((len(each), length), dtype=np.int64)
    for row, own in given:
        images[row, : len(own.pixels)] = own.pixels
        for first in own.firsts:
            mask[row, first : first + own.patches] = 1
    found = {"image_mask": network.tensor(mask)}
    return {**found, "images": network.tensor(images, torch.uint8)} if embeds else found
