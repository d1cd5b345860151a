"""What megatron-core makes of a blend, told without building it: who gives which sample, and how many epochs are built.

Light: plain arithmetic, equal to BlendedDataset's and GPTDataset's (megatron-core 0.16.1) number for number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

_COMPARISONS = 300_000
"""Most comparisons of sources for the counts of a blend: some 20 ms. One position in each source takes at most ten
times as many."""
_ROUNDS = 20
"""Samples of the rarest source after which a way from rounded shares has come back to the right one."""
_SEPARATE_BELOW = 0.80
"""A last epoch of which less than this part is needed is kept behind the others."""


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights that add up to 1, rounded as numpy rounds."""
    total = _sum(weights) or 1.0  # shares of weights whose sum is infinite are all 0
    return [weight / total for weight in weights]


def _sum(values: Sequence[float]) -> float:
    """The sum as numpy adds: eight partial sums for 8 values and more, halves of more than 128 apart."""
    count = len(values)
    if count > 128:
        half = count // 2 - count // 2 % 8
        return _sum(values[:half]) + _sum(values[half:])
    if count < 8:
        partial, rest = -0.0, values
    else:
        whole = count - count % 8
        sums = list(values[:8])
        for first in range(8, whole, 8):
            sums = [one + values[first + number] for number, one in enumerate(sums)]
        partial = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
        rest = values[whole:]
    for value in rest:
        partial += value
    return partial


class Draws:
    """Which source of a blend gives which sample: always the one that lags furthest behind its share of those given.

    A count is never more than one ahead of its share, and the counts add up: so after every `period` samples, where the
    weights are `period`-ths, each source has given exactly its share, and only what follows is gone through one by one.
    Where that is long the way begins close before the answer, from rounded shares; it soon is the same as from the
    first sample on, as what lags is caught up. Only with a weight far below the others can an answer be a sample off.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.shares = normalized(normalized(weights))  # twice, as megatron-core does: the last bits decide ties
        self._exact = _parts(weights)
        self._period = sum(self._exact)
        merged = max(_ROUNDS / max(min(self.shares), 1e-9), _ROUNDS * len(weights))
        affordable = _COMPARISONS / len(weights)
        self._longest = int(min(merged, affordable)) + 1
        self._longest_to_position = int(min(merged, affordable, 10 * affordable / len(weights))) + 1

    def counts(self, samples: int) -> list[int]:
        """Samples that each source gives of the first `samples` of the blend."""
        if len(self.shares) == 1:
            return [samples]
        position, counts = self._before(samples, self._longest)
        self._go_on(position, samples, counts)
        return counts

    def position(self, source: int, number: int) -> int:
        """Where in the blend, counted from 0, a source gives its sample `number`, counted from 0.

        Of very many sources, and of very rare ones, to half a sample of that source.
        """
        if len(self.shares) == 1:
            return number
        share, longest = self.shares[source], self._longest_to_position
        earliest = int(number / share)  # no count is more than one ahead of its share
        place, counts = self._before(max(earliest - 2, 0), longest)
        while place < earliest + longest:
            self._go_on(place, place + 1, counts)
            if counts[source] > number:
                return place
            place += 1
        return int((number + 0.5) / share)

    def _before(self, samples: int, longest: int) -> tuple[int, list[int]]:
        """A place at most `longest` before `samples`, and the counts there."""
        periods = samples // self._period
        if samples - periods * self._period <= longest:
            return periods * self._period, [part * periods for part in self._exact]
        start = samples - longest
        counts = [part * start // self._period for part in self._exact]
        short = [part * start % self._period for part in self._exact]
        behind = sorted(range(len(counts)), key=lambda source: -short[source])
        for source in behind[: start - sum(counts)]:
            counts[source] += 1
        return start, counts

    def _go_on(self, start: int, stop: int, counts: list[int]) -> None:
        shares = self.shares
        for given in range(start, stop):
            asked = max(given, 1)
            behind = [share * asked - count for share, count in zip(shares, counts, strict=True)]
            counts[behind.index(max(behind))] += 1


def blend_counts(weights: Sequence[float], samples: int) -> list[int]:
    """Samples that each source gives of the first `samples` of a blend."""
    return Draws(weights).counts(samples)


def _parts(weights: Sequence[float]) -> list[int]:
    """Whole numbers that are to each other as the weights as they are written."""
    written = [Fraction(repr(float(weight))) for weight in weights]
    denominator = math.lcm(*(weight.denominator for weight in written))
    whole = [int(weight * denominator) for weight in written]
    divisor = math.gcd(*whole)
    return [part // divisor for part in whole]


class SourceIndex(NamedTuple):
    """The index of one source: whole epochs of its documents, cut into samples and shuffled."""

    epochs: int
    samples: int
    in_order: int | None
    """Samples of the first epoch, where it is read to its end before the next one begins. None where a document can
    come again before all were read: epochs but a last one that is hardly needed are shuffled together."""


def built(tokens: int, samples: int, seq_length: int) -> SourceIndex:
    """What GPTDataset builds to give at least `samples` samples of `seq_length` + 1 tokens (the last one is the next
    sample's first) from a source of `tokens` tokens, of which there must be more than `seq_length`.
    """
    epochs = max(-(-(samples * seq_length + 1) // tokens), 1)
    before_last = ((epochs - 1) * tokens - 1) // seq_length
    per_epoch = samples_of(tokens, seq_length)
    separate = samples - before_last < int(_SEPARATE_BELOW * per_epoch)
    in_order = per_epoch if epochs == 1 or (epochs == 2 and separate) else None
    return SourceIndex(epochs, samples_of(epochs * tokens, seq_length), in_order)


def samples_of(tokens: int, seq_length: int) -> int:
    """Samples in a stream of tokens: each takes `seq_length` and looks at one more."""
    return max((tokens - 1) // seq_length, 0)


SURPLUS = 0.005
"""Extra samples that megatron-core asks each source of a blend for, as a fraction: its mid_level_dataset_surplus."""


def asked_of_sources(weights: Sequence[float], samples: int, surplus: float = SURPLUS) -> list[int]:
    """Samples that a blend of `samples` asks each source for: its share, rounded up, and a surplus in case it gives
    more."""
    return [math.ceil(math.ceil(samples * share) * (1 + surplus)) for share in normalized(weights)]


def length_of(weights: Sequence[float], samples: int) -> int:
    """Samples in the blend that megatron-core makes where `samples` are needed: a few more."""
    return sum(asked_of_sources(weights, samples, 0.0))


def larger_surplus(weights: Sequence[float], samples: int) -> float:
    """The surplus of runs of earlier versions. A blend can exceed a small source's share by one or two samples; they
    asked every source for more because of it."""
    if len(weights) == 1:
        return SURPLUS
    fewest = max(min(asked_of_sources(weights, samples, 0.0)), 1)
    return max(SURPLUS, (len(weights) + 2) / fewest)


def asked_of_blend(weights: Sequence[float], samples: int, larger: bool) -> list[int]:
    """Samples that a blend asks each source for, with Megatron-LM's surplus or that of earlier versions."""
    return asked_of_sources(weights, samples, larger_surplus(weights, samples) if larger else SURPLUS)
