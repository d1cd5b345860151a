"""A training set that continues from a position: each source continues after the samples already drawn from it."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.utils import normalize
from torch.utils.data import Dataset

from orchestrator.data.samples.position import DataPosition, SourcePosition
from orchestrator.data.samples.predicted_blend import blend_counts

_ROUNDS = 4
BuildSource = Callable[[str, int], Any]
"""(path, samples) → megatron-core's data set of at least so many samples of one source; on every rank."""


class ContinuedSource(Dataset[dict[str, Any]]):
    """The samples of a source that follow those drawn before: first the rest of the order that megatron-core made,
    then whole epochs, each in an order of its own.
    """

    def __init__(self, source: SourcePosition, needed: int, build: BuildSource) -> None:
        """`needed`: the most samples still to be drawn. Called on every rank; they wait for each other."""
        self._drawn, self._needed = source.drawn, needed
        self._first = build(source.path, source.first)
        endless = getattr(self._first, "is_endless", False)
        self._in_first = sys.maxsize if endless else len(self._first)
        # Asked for one sample, every family makes one whole epoch.
        self._epoch: Any = build(source.path, 1) if source.drawn + needed > self._in_first else None
        self._of_epoch: tuple[int, Any] = (-1, None)
        # What megatron-core's blend asks its sources.
        self.config, self.index_split = self._first.config, self._first.index_split
        self.unique_identifiers = OrderedDict(self._first.unique_identifiers, drawn=source.drawn)

    def __len__(self) -> int:
        return self._needed

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self._drawn + int(index)
        if number < self._in_first:
            item: dict[str, Any] = self._first[number]
            return item
        epoch, place = divmod(number - self._in_first, len(self._epoch))
        key = f"{self._epoch.config.random_seed} {epoch}"
        item = self._at(epoch)[permuted(place, len(self._epoch), key)]
        return item

    def _at(self, epoch: int) -> Any:
        """The samples of an epoch; their masks, if any, are drawn anew."""
        if self._of_epoch[0] != epoch:
            samples = copy.copy(self._epoch)
            samples.config = copy.copy(samples.config)
            samples.config.random_seed += epoch + 1
            self._of_epoch = (epoch, samples)
        return self._of_epoch[1]


class ContinuedSamples(Dataset[dict[str, Any]]):
    """The samples of a blend that came into force at sample `since` of a run, counted from the run's first."""

    def __init__(self, samples: Any, since: int) -> None:
        self._samples, self._since = samples, since

    def __len__(self) -> int:
        return self._since + len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = self._samples[index - self._since]
        return item


def continued_samples(position: DataPosition, end: int, build: BuildSource) -> ContinuedSamples:
    """The samples of a run from `position.since` up to `end`, or more. On every rank; they wait for each other."""
    weights, samples = position.weights, end - position.since
    most = [count + 1 for count in blend_counts(weights, samples)]  # of very rare sources they may be one off
    sources = [ContinuedSource(source, count, build) for source, count in zip(position.sources, most, strict=True)]
    if len(sources) == 1:
        return ContinuedSamples(sources[0], position.since)
    blend = BlendedMegatronDatasetBuilder.build_generic_dataset(
        BlendedDataset, lambda: True, True, sources, normalize(list(weights)), samples, sources[0].config
    )
    return ContinuedSamples(blend, position.since)


def permuted(place: int, size: int, key: str) -> int:
    """What stands at a place of a permutation of 0, …, size - 1 that `key` decides, without making the whole of it.

    A Feistel network over the next power of four, gone through again while it leads outside (Black and Rogaway 2002,
    "Ciphers with Arbitrary Finite Domains").
    """
    half = max((size - 1).bit_length() + 1, 2) // 2
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for number in range(_ROUNDS):
            digest = hashlib.blake2b(f"{key} {number} {right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        place = left << half | right
        if place < size:
            return place
