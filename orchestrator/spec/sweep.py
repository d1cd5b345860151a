"""A sweep: many jobs from one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from orchestrator.fields.base import Section
from orchestrator.fields.values import After, Before, Name, Positive, Seed, Text, empty_dict, empty_list

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


def _first_rung(value: Any) -> Any:
    """`10%` as the share 0.1."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            return value
    return value


def _is_budget(value: float) -> float:
    if not (0 < value <= 0.5 or (value >= 1 and value == int(value))):
        raise ValueError("is a number of steps, or at most half of the training: 100, 10%, 0.1")
    return value


FirstRung = Annotated[
    float,
    Before(_first_rung),
    After(_is_budget),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"%$"}]}),
]


class SearchSpec(Section):
    """Finding the best cell without training all of them to the end."""

    strategy: Literal["asha", "halving", "bayesian"]
    """`asha` and `halving` stop cells early: asynchronous and synchronous successive halving. `bayesian` draws the
    values of `random` one after the other, each from the results of earlier ones (Optuna, TPE)."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """Of `asha` and `halving`: one cell in so many is promoted from each rung to the next, whose budget is so many
    times as long."""
    first_rung: FirstRung = 0.1
    """Of `asha` and `halving`: the budget of the first rung, in steps (`100`) or as a share of the training (`10%`)."""


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
    grid: dict[Text, Values] = Field(default_factory=empty_dict)
    """Field → values; every combination is a cell."""
    zip: dict[Text, Values] = Field(default_factory=empty_dict)
    """Field → values, all of the same length, combined pairwise."""
    list: Points = Field(default_factory=empty_list)
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
    search: SearchSpec | None = None
    """Finding the best cell without training all of them to the end."""
