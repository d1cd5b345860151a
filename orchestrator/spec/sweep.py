"""A sweep: many jobs from one."""

from __future__ import annotations

import builtins
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from orchestrator.fields.base import Section
from orchestrator.fields.values import Before, Name, Positive, Seed, Text

Values = Annotated[list[Any], Field(min_length=1)]
Range = Annotated[list[float], Field(min_length=2, max_length=2)]
IntegerRange = Annotated[list[int], Field(min_length=2, max_length=2)]


class DistributionSpec(Section):
    """Distribution of the values of one field; exactly one of these."""

    uniform: Range | None = None
    """[low, high]: uniform over the numbers in between."""
    loguniform: Range | None = None
    """[low, high], both above 0: uniform over orders of magnitude."""
    integers: IntegerRange | None = None
    """[low, high], both included: whole numbers."""
    choice: Values | None = None
    """One of these values."""

    @model_validator(mode="after")
    def _check(self) -> DistributionSpec:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("a distribution is one of uniform, loguniform, integers or choice")
        ends = self.uniform or self.loguniform or self.integers
        if ends is not None and not ends[0] < ends[1]:
            raise ValueError(f"{given[0]} wants [low, high] with low < high")
        if self.loguniform is not None and self.loguniform[0] <= 0:
            raise ValueError("loguniform wants numbers above 0")
        return self


class RandomSpec(Section):
    """Values drawn at random: the same seed gives the same values, and a larger `count` only adds more."""

    count: Annotated[Positive, Field(le=10_000)]
    """How many times to draw."""
    seed: Seed = 0
    """Seed of the draws."""
    fields: Annotated[dict[Text, DistributionSpec], Field(min_length=1)]
    """Field → distribution."""


Conditions = Annotated[
    list[Text],
    Field(min_length=1),
    Before(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Points = list[Annotated[dict[Text, Any], Field(min_length=1)]]


class SweepSpec(Section):
    """Many jobs from one. `grid`, `zip`, `list` and `random` are combined: each with each."""

    name: Name | None = None
    """Name of the sweep; the job's name by default. Run it again with more values, and only
    the new cells start."""
    grid: dict[Text, Values] = Field(default_factory=dict)
    """Field → values; every combination is a cell."""
    zip: dict[Text, Values] = Field(default_factory=dict)
    """Field → values, all of the same length, combined pairwise."""
    list: Points = Field(default_factory=builtins.list)
    """Individual cells, each as field: value."""
    random: RandomSpec | None = None
    """Values drawn at random."""
    when: Conditions | None = None
    """Condition, or several, that a cell must meet: `tp * pp <= 8`. Names are fields, in full or short."""
    metric: Text | None = None
    """Metric by which cells are compared; by default validation/loss, or train/loss without evaluations."""
    goal: Literal["min", "max"] = "min"
    """Whether smaller or larger values of the metric are better."""
    max_parallel: Positive | None = None
    """How many cells may run at once; by default as many as the cluster has room for, or one on a single machine."""
