"""megatron-core's builder of data sets, for blends that it would refuse as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.utils import normalize

from orchestrator.data.samples.predicted_blend import blend_counts, length_of


class BlendBuilder(BlendedMegatronDatasetBuilder):
    """Asks each source of a blend for the given number of samples.

    A blend can give more samples of a small source than that, and megatron-core refuses to build it where the source
    has no more. Here such a source is asked for what the blend gives of it, and every other one stays as it is.
    """

    def __init__(self, kind: type[Any], sizes: Sequence[int], config: Any, asked: Sequence[int]) -> None:
        """`sizes`: samples of each part, 0 for all but one. `asked`: of each source, for that part."""
        super().__init__(kind, list(sizes), lambda: True, config)
        self._asked = asked

    def _build_megatron_datasets_parallel(
        self, prefixes: list[str], split: list[Any], sizes_per_dataset: list[list[int]]
    ) -> list[list[Any]]:
        """On every rank; they find the same sources too small."""
        part = next(number for number, size in enumerate(self.sizes) if size)
        samples = self.sizes[part]

        def build(sources: Sequence[int], asked: Sequence[int]) -> list[list[Any]]:
            sizes = [[count if number == part else 0 for number in range(len(self.sizes))] for count in asked]
            made: list[list[Any]] = super(BlendBuilder, self)._build_megatron_datasets_parallel(
                [prefixes[source] for source in sources], split, sizes
            )
            return made

        built = build(range(len(prefixes)), self._asked)
        given = samples_given(self.config.blend[1], samples, [len(source) for source in built[part]])
        short = [source for source, index in enumerate(built[part]) if len(index) < given[source]]
        if short:
            for source, index in zip(short, build(short, [given[source] for source in short])[part], strict=True):
                built[part][source] = index
        return built


def samples_given(weights: Sequence[float], samples: int, held: Sequence[int]) -> list[int]:
    """Samples that megatron-core's blend of `samples` gives of each source. Exact where that is about as many as the
    source has (`held`)."""
    length = length_of(weights, samples)
    counts = blend_counts(weights, length)
    if all(count < limit for count, limit in zip(counts, held, strict=True)):
        return counts  # no count is more than one off
    sources = np.zeros(length, dtype=np.int16)
    shares = normalize(normalize(list(weights)))
    helpers.build_blending_indices(sources, np.zeros(length, dtype=np.int64), shares, len(shares), length, False)
    return [int(count) for count in np.bincount(sources, minlength=len(shares))]
