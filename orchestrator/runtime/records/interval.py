"""The steps between two lines of metrics, and the means of what they measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class _Mean:
    """The mean of the finite values, or of all values if none is finite."""

    total: float = 0.0
    count: int = 0
    not_finite: float = 0.0

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self.total += value
            self.count += 1
        else:
            self.not_finite += value

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else self.not_finite


@dataclass
class Interval:
    """Every step weighs the same, however many tokens it had. A step in which a value was not finite (it was skipped,
    or nothing counted) is left out of that value's mean: it would hide the others.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    _means: dict[str, _Mean] = field(default_factory=dict)

    def add(self, samples: int, seconds: float, values: Mapping[str, float]) -> None:
        """Count a step: its samples, its wall clock, and what it measured."""
        self.steps += 1
        self.samples += samples
        self.seconds += seconds
        for name, value in values.items():
            self._means.setdefault(name, _Mean()).add(value)

    @property
    def means(self) -> dict[str, float]:
        """The means of what the steps measured, by name."""
        return {name: mean.value for name, mean in self._means.items()}
