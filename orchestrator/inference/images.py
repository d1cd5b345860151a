"""Images in prompts: where each stands among the tokens, and what of them a network takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from orchestrator.data.chat.tokens import mark_token, surrounded
from orchestrator.data.input.images import Pixels, pixels
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.inference.network import Network
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import MARK, VisionSpec, marks_problem

IMAGE = -200
"""An image in a list of token ids; LLaVA's own number for it."""

_NOTHING = np.zeros(0, dtype=np.uint8)

Image = str | Path | bytes | np.ndarray[Any, np.dtype[np.uint8]]
"""A file, what is in one, or pixels as they are: [3, size, size], uint8."""


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one prompt, in their order."""

    pixels: tuple[Pixels, ...]
    firsts: tuple[int, ...]
    """Which of the prompt's tokens is the first of each one's patches."""
    counts: tuple[int, ...]
    """Tokens that each takes."""

    @property
    def tokens(self) -> int:
        """Tokens that all of them take."""
        return sum(self.counts)

    def text(self, tokens: Sequence[int]) -> list[int]:
        """The prompt's tokens that stand for no patch."""
        is_text = np.ones(len(tokens), dtype=bool)
        for first, count in zip(self.firsts, self.counts, strict=True):
            is_text[first : first + count] = False
        return [token for token, keeps in zip(tokens, is_text.tolist(), strict=True) if keeps]


def tokens_and_marks(tokenizer: Tokenizer, text: str, around: tuple[str, str] = ("", "")) -> list[int]:
    """Token ids of a text, `IMAGE` for each mark, with the texts `around` it: what stands between marks is a text of
    its own, but to a tokenizer that knows the mark. So it is in conversations that a model is trained on."""
    text = surrounded(text, MARK, around)
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
    read = tuple(_pixels(image, vision) for image in given)
    counts = tuple(vision.tokens_of(*image.shape[1:]) for image in read)
    placed: list[int] = []
    firsts: list[int] = []
    for token in tokens:
        if token == IMAGE:
            placed += [patch] * counts[len(firsts)]
            firsts.append(len(placed) - counts[len(firsts)])
        else:
            placed.append(token)
    return placed, Images(read, tuple(firsts), counts)


def _pixels(image: Image, vision: VisionSpec) -> Pixels:
    size = vision.image_size
    if not isinstance(image, np.ndarray):
        if not isinstance(image, str | Path | bytes):
            kind = f"{type(image).__module__}.{type(image).__name__}"
            raise UserError(
                f"a {kind} is not an image: give a file, its content, or uint8 [3, {size}, {size}]", code="not_an_image"
            )
        return pixels(Path(image) if isinstance(image, str) else image, vision)
    if vision.kind.keeps_shape:
        return _of_any_size(image, vision)
    if image.shape != (3, size, size) or image.dtype != np.uint8:
        raise UserError(
            f"an array of {image.dtype}, {list(image.shape)}, is not an image: give uint8, [3, {size}, {size}]",
            code="not_an_image",
        )
    return image


def _of_any_size(image: np.ndarray[Any, np.dtype[np.uint8]], vision: VisionSpec) -> Pixels:
    """Raises UserError for an array that is no image of whole tokens within the limits."""
    shape, unit = image.shape, vision.unit
    fits = len(shape) == 3 and shape[0] == 3 and min(shape) > 0 and not (shape[1] % unit or shape[2] % unit)
    if not fits or shape[1] * shape[2] > vision.image_size**2 or image.dtype != np.uint8:
        raise UserError(
            f"an array of {image.dtype}, {list(shape)}, is not an image: give uint8, [3, rows, columns], both "
            f"multiples of {unit}, with {vision.image_size**2} pixels at most",
            code="not_an_image",
        )
    return cast(Pixels, image)


def batch_of_images(network: Network, each: Sequence[Images | None], length: int) -> dict[str, Any]:
    """What a network that sees takes beside tokens [b, s], s of them: `images` [b, n, 3, size, size], those of each row
    first, and `image_mask` [b, s]. Of images of any size `images` are those of each row, [numbers], one after the
    other, and `grids` are there too. Nothing where no row has any. A stage that embeds no tokens takes no images, and
    what `places_of_images` gives only where attention or positions ask for it."""
    given, embeds, model = _given(each), network.module.pre_process, network.job.model
    if not given or not (embeds or model.attends_both_ways_in_images or model.image_encoder.kind.keeps_shape):
        return {}
    found: dict[str, Any] = places_of_images(network, each, length)
    if embeds and model.image_encoder.kind.keeps_shape:
        rows = ([] if own is None else [image.reshape(-1) for image in own.pixels] for own in each)
        found["images"] = [network.tensor(np.concatenate([*row, _NOTHING]), torch.uint8) for row in rows]
    elif embeds:
        shape = given[0][1].pixels[0].shape
        images = np.zeros((len(each), max(len(own.pixels) for _, own in given), *shape), dtype=np.uint8)
        for row, own in given:
            images[row, : len(own.pixels)] = own.pixels
        found["images"] = network.tensor(images, torch.uint8)
    return found


def places_of_images(network: Network, each: Sequence[Images | None], length: int) -> dict[str, torch.Tensor]:
    """Of s tokens in each row `image_mask` [b, s], 1 where one is of an image, and of images of any size `grids`
    [b, n, 2], the rows and columns of their patches, in the host's memory. Nothing where no row has any."""
    given = _given(each)
    if not given:
        return {}
    mask = np.zeros((len(each), length), dtype=np.int64)
    for row, own in given:
        for first, count in zip(own.firsts, own.counts, strict=True):
            mask[row, first : first + count] = 1
    found = {"image_mask": network.tensor(mask)}
    vision = network.job.model.image_encoder
    if vision.kind.keeps_shape:
        grids = np.zeros((len(each), max(len(own.pixels) for _, own in given), 2), dtype=np.int64)
        for row, own in given:
            sides = [image.shape[1:] for image in own.pixels]
            grids[row, : len(sides)] = np.array(sides) // vision.patch_size
        found["grids"] = torch.from_numpy(grids)
    return found


def _given(each: Sequence[Images | None]) -> list[tuple[int, Images]]:
    return [(row, own) for row, own in enumerate(each) if own is not None]
