"""From the pieces of a conversation to tokens: the same for what is trained on and for what is gone on from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from orchestrator.data.chat.conversations import Message
from orchestrator.data.chat.images import IMAGE
from orchestrator.data.chat.templates import ChatTemplate, RenderedText
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.spec.prompts import NO_TEXT, is_text
from orchestrator.spec.vision import MARK

_MARKS = re.compile(f"{IMAGE}|{re.escape(MARK)}")


class Tokens(NamedTuple):
    """Token ids, and whether each counts."""

    ids: list[int]
    counts: list[int]


def prompt_tokens(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    image: int,
    around: tuple[str, str] = ("", ""),
) -> list[int]:
    """What the assistant's next turn goes on from, `image` for each `chat.images.IMAGE` that the template keeps, with
    the texts `around` it. `MARK` is text like any other. Raises ValueError for a conversation that it does not take."""
    pieces = template.prompt(messages)
    if not all(is_text(piece.text or "") for piece in pieces):
        raise ValueError(f"what the chat template writes {NO_TEXT}")
    if not any(IMAGE in message.text for message in messages):
        return tokens_of(tokenizer, pieces, template.is_whole).ids
    first, *others = between_images(tokenizer, with_text_around(pieces, around), template.is_whole)
    return [*first.ids, *(token for part in others for token in (image, *part.ids))]


def tokens_of(tokenizer: Tokenizer, pieces: Sequence[RenderedText], is_whole: bool) -> Tokens:
    """The tokens of pieces without images; `is_whole` as their template says."""
    return _as_one(tokenizer, pieces) if is_whole else _piece_by_piece(tokenizer, pieces)


def with_text_around(pieces: Sequence[RenderedText], around: tuple[str, str]) -> list[RenderedText]:
    """The pieces with a text before and behind each image, but where a template writes it itself."""
    return [replace(piece, text=piece.text and surrounded(piece.text, IMAGE, around)) for piece in pieces]


def surrounded(text: str, image: str, around: tuple[str, str]) -> str:
    """A text with `around` before and behind each `image` that has it not yet."""
    before, behind = around
    found = re.compile(f"(?:{re.escape(before)})?{re.escape(image)}(?:{re.escape(behind)})?")
    return found.sub(lambda _: f"{before}{image}{behind}", text)


def between_images(tokenizer: Tokenizer, pieces: Sequence[RenderedText], is_whole: bool) -> list[Tokens]:
    """The tokens before, between and after the images of pieces, each a text of its own, but to a tokenizer that knows
    the mark. Raises ValueError where that finds other than stand there."""
    own = mark_token(tokenizer)
    if own is None:
        return [tokens_of(tokenizer, part, is_whole) for part in _split(pieces)]
    return _between_marks(tokenizer, own, pieces, is_whole)


def mark_token(tokenizer: Tokenizer) -> int | None:
    """The token that a tokenizer makes of every `MARK` in a text; None for one that takes it for text."""
    own = tokenizer.token_id(MARK)
    return own if own is not None and tokenizer.encode(MARK) == [own] else None


def _between_marks(tokenizer: Tokenizer, own: int, pieces: Sequence[RenderedText], is_whole: bool) -> list[Tokens]:
    """What stands between images where the tokenizer itself knows the mark, as one text: so does transformers. Marks
    that people or templates write stay, as tokens that are no images."""
    texts = [piece.text or "" for piece in pieces]
    stand = [mark for text in (["".join(texts)] if is_whole else texts) for mark in _MARKS.findall(text)]
    ids, counts = tokens_of(
        tokenizer, [replace(piece, text=piece.text and piece.text.replace(IMAGE, MARK)) for piece in pieces], is_whole
    )
    found = [place for place, number in enumerate(ids) if number == own]
    if len(found) != len(stand):
        raise ValueError(f"its tokenizer finds {len(found)} {MARK} in a text that has {len(stand)}")
    places = [place for place, mark in zip(found, stand, strict=True) if mark == IMAGE]
    starts, stops = [0, *(place + 1 for place in places)], [*places, len(ids)]
    return [Tokens(ids[start:stop], counts[start:stop]) for start, stop in zip(starts, stops, strict=True)]


def _as_one(tokenizer: Tokenizer, pieces: Sequence[RenderedText]) -> Tokens:
    """Of what counts, the tokens from that of its first character to that of its last count, as transformers' mask has
    it: one that began before is among them, and of several for the last character the first."""
    text = "".join(piece.text or "" for piece in pieces)
    ids, spans = tokenizer.encode_with_spans(text)
    starts, ends = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans)).reshape(-1, 2).T
    counts = np.zeros(len(ids), dtype=np.int64)
    stop = 0
    for piece in pieces:
        start, stop = stop, stop + len(piece.text or "")
        if piece.counts and stop > start:
            first, last = np.searchsorted(ends, [start, stop - 1], side="right").tolist()
            is_covered = last < len(ids) and starts[last] < stop
            counts[first : last + is_covered] = 1
    return Tokens(ids, counts.tolist())


def _piece_by_piece(tokenizer: Tokenizer, pieces: Sequence[RenderedText]) -> Tokens:
    ids: list[int] = []
    counts: list[int] = []
    for piece in pieces:
        part = [tokenizer.eod] if piece.text is None else tokenizer.encode(piece.text)
        ids += part
        counts += [piece.counts] * len(part)
    return Tokens(ids, counts)


def _split(pieces: Sequence[RenderedText]) -> list[list[RenderedText]]:
    """The pieces before, between and after images."""
    parts: list[list[RenderedText]] = [[]]
    for piece in pieces:
        first, *others = [None] if piece.text is None else piece.text.split(IMAGE)
        parts[-1].append(replace(piece, text=first))
        parts += [[replace(piece, text=text)] for text in others]
    return parts
