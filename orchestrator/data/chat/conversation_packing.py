"""Which conversations share a sequence: a function of their lengths and a seed alone. Light: plan and training ask it.

Conversations are shuffled once and gone through in windows; in each, the longest first, a conversation joins the
sequence that it fills best.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from orchestrator.data.chat.stored_images import image_counts
from orchestrator.data.indexed_dataset.header import HEADER, IndexHeader, bin_path, damaged, idx_path, tokens_before
from orchestrator.spec.sections.chat import ChatSpec
from orchestrator.spec.vision import VisionSpec

WINDOW = 4096
"""Conversations that are sorted among each other: enough to fill nearly every sequence, few enough that short and long
ones stay mixed over an epoch."""
COUNTS, PATCH = 1, 2
"""In a mask: the loss counts the token; it is one of an image's patches, which it does not count."""


def loss_mask_prefix(prefix: Path) -> Path:
    """Where the mask of a data set of conversations lies: an indexed data set of the same lengths, uint8, `COUNTS`
    where a token counts, `PATCH` where an image's patch stands, else 0."""
    return prefix.with_name(prefix.name + ".loss_mask")


class UsableConversations(NamedTuple):
    """What a training takes of the conversations of one part of a data set."""

    lengths: array[int]
    """Positions that each takes, one fewer than its tokens: the last is only predicted. 0 where it is left out."""
    cut: int
    """Conversations whose end is cut off."""
    dropped: int
    """Left out because they are too long, because nothing before the cut counts, or because they are crowded."""
    short: int
    """Left out because there is no token to predict."""
    crowded: int = 0
    """Those of the dropped that have more images than a sequence may have."""
    images: int = 0
    """Images of the conversations that are kept."""

    @property
    def kept(self) -> int:
        """Conversations that a training sees."""
        return len(self.lengths) - self.dropped - self.short


def usable(
    header: IndexHeader, first: int, stop: int, chat: ChatSpec, seq_length: int, vision: VisionSpec | None = None
) -> UsableConversations:
    """The conversations `first` to `stop` of a data set, for sequences of `seq_length` of a model that sees images or
    not. Raises DataError for lengths that are none."""
    lengths = array("i")
    with open(idx_path(header.prefix), "rb") as file:
        file.seek(HEADER.size + 4 * first)
        lengths.frombytes(file.read(4 * (stop - first)))
    pictures = image_counts(header.prefix, first, stop, vision) if vision is not None else array("i")
    most = vision.images_per_sequence if vision is not None else 0
    cut = dropped = short = crowded = images = 0
    truncates, start = chat.long_conversations == "truncate", tokens_before(header, first)
    with open(bin_path(loss_mask_prefix(header.prefix)), "rb") as mask:
        for number, tokens in enumerate(lengths):
            if tokens < 0:
                raise damaged(idx_path(header.prefix), f"its sequence {first + number} has {tokens} tokens")
            if tokens < 2:
                lengths[number] = 0
                short += 1
            elif pictures and pictures[number] > most:
                lengths[number] = 0
                crowded += 1
            elif tokens <= seq_length + 1:
                lengths[number] = tokens - 1
            elif truncates and _counts(mask, start, seq_length + 1):
                lengths[number] = seq_length
                cut += 1
            else:
                lengths[number] = 0
                dropped += 1
            if pictures and lengths[number]:
                images += pictures[number]
            start += tokens
    return UsableConversations(lengths, cut, dropped + crowded, short, crowded, images)


def _counts(mask: BinaryIO, start: int, tokens: int) -> bool:
    """Whether any of the first tokens of a conversation counts that can be predicted: the first cannot."""
    mask.seek(start + 1)  # a byte for each token
    return COUNTS in mask.read(tokens - 1)


def pack(lengths: Sequence[int], capacity: int, seed: int, packing: bool) -> list[list[int]]:
    """The conversations, by number, of each sequence. Every length above 0 is there once; lengths up to `capacity`."""
    order = [number for number, length in enumerate(lengths) if length]
    random.Random(seed).shuffle(order)
    if not packing:
        return [[number] for number in order]
    packs: list[list[int]] = []
    for first in range(0, len(order), WINDOW):
        packs += _pack_window(order[first : first + WINDOW], lengths, capacity)
    return packs


def _pack_window(numbers: Sequence[int], lengths: Sequence[int], capacity: int) -> Iterator[list[int]]:
    """Best fit, the longest first; of those alike in length and of equally full sequences, the earlier."""
    packs: list[list[int]] = []
    open_packs: list[tuple[int, int]] = []  # (positions left, number of the sequence), sorted
    for number in sorted(numbers, key=lambda number: -lengths[number]):
        length = lengths[number]
        place = bisect_left(open_packs, (length, 0))
        if place < len(open_packs):
            left, which = open_packs.pop(place)
        else:
            left, which = capacity, len(packs)
            packs.append([])
        packs[which].append(number)
        if left > length:
            insort(open_packs, (left - length, which))
    yield from packs
