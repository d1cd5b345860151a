"""Several runs beside each other: how their specs differ, what they have come to, names that tell them apart."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from orchestrator.fields.formatting import shorten
from orchestrator.review.charts.series import Column, Series, usual_of
from orchestrator.review.redaction import Redaction
from orchestrator.review.run_summary import RunSummary
from orchestrator.spec.documents.field_names import short_name

MOST_RUNS = 20
"""Beside each other: more can neither be told apart nor read."""

Goal = Literal["min", "max"]
Kind = Literal["number", "count", "percent", "seconds", "bytes"]

_LATE_SECTIONS = ("launch", "tracking", "checkpoint", "runtime")
"""Fields in which runs differ without being different experiments: they name a run only where nothing else does."""
_LABEL_VALUE = 24


@dataclass(frozen=True)
class Difference:
    """A field in which specs differ. `values`: as the resolved specs have them, without secrets, in the order of the
    runs; None for a spec that lacks the field or cannot be read.
    """

    path: str
    values: tuple[str | None, ...]

    @property
    def section(self) -> str:
        """The part of the spec it belongs to; empty for a field of the job itself."""
        return self.path.partition(".")[0] if "." in self.path else ""


@dataclass(frozen=True)
class Measure:
    """A figure by which runs are compared. `goal`: which value is the best; None where none is better."""

    name: str
    title: str
    goal: Goal | None
    kind: Kind = "number"


MEASURES = (
    Measure("loss", "loss", "min"),
    Measure("common_loss", "loss at the last common step", "min"),
    Measure("validation", "validation loss", "min"),
    Measure("best_validation", "best validation loss", "min"),
    Measure("steps", "steps", None, "count"),
    Measure("tokens", "tokens seen", None, "count"),
    Measure("seconds", "first to last step", None, "seconds"),
    Measure("tokens_per_second", "tokens/s total", "max", "count"),
    Measure("mfu", "MFU", "max", "percent"),
    Measure("step_seconds", "step time", "min", "seconds"),
    Measure("peak_bytes", "peak memory", "min", "bytes"),
    Measure("goodput", "goodput", "max", "percent"),
)
"""What runs are compared by, in this order. Speeds: the median of the latest 100 measured steps."""


@dataclass(frozen=True)
class Row:
    """A measure of every run. `best`: the places of the best values, none where no value is better than another."""

    measure: Measure
    values: tuple[float | None, ...]
    best: frozenset[int]


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other; everything is in their order. `common_step`: the last step that all those have measured
    that have measured a loss; None where fewer than two have.
    """

    runs: tuple[RunSummary, ...]
    labels: tuple[str, ...]
    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    common_step: int | None


@dataclass(frozen=True)
class Facts:
    """What a run is compared by, apart from its measurements. `values`: measures by name; `loss`: the losses that
    count, None where there are none.
    """

    values: Mapping[str, float | None]
    loss: Column | None

    @property
    def bytes(self) -> int:
        """About how much memory its losses take."""
        return 16 * len(self.loss.values) if self.loss is not None else 0


def compare(runs: Sequence[RunSummary], series: Sequence[Series | None]) -> Comparison:
    """Compare runs. `series`: what each has measured; None for a run whose measurements were not read: of those the
    last values are known. Measures that no run has are left out.
    """
    return compare_facts(runs, [facts_of(each) if each is not None else None for each in series])


def compare_facts(runs: Sequence[RunSummary], facts: Sequence[Facts | None]) -> Comparison:
    """The same by facts, for which the measurements of all runs need not be in memory together."""
    found = differences([run.spec for run in runs])
    common = common_step(facts)
    columns = [_measured(run, each, common) for run, each in zip(runs, facts, strict=True)]
    rows = []
    for measure in MEASURES:
        values = tuple(column.get(measure.name) for column in columns)
        if any(value is not None for value in values):
            rows.append(Row(measure, values, best_places(values, measure.goal)))
    said = labels([run.shown_label for run in runs], found)
    return Comparison(tuple(runs), said, tuple(found), tuple(rows), common)


def differences(specs: Sequence[Mapping[str, str]]) -> list[Difference]:
    """The fields in which specs (by dotted keys) differ, those of a section together. Empty specs, which are those that
    cannot be read, differ from none.
    """
    known = [spec for spec in specs if spec]
    paths = dict.fromkeys(path for spec in known for path in spec)
    differing = [path for path in paths if len({spec.get(path) for spec in known}) > 1]
    discretion = Redaction(known)

    def said(path: str, value: str | None) -> str | None:
        return None if value is None else discretion.field(path, value)

    found = [Difference(path, tuple(said(path, spec.get(path)) for spec in specs)) for path in differing]
    sections = list(dict.fromkeys(each.section for each in found))
    return sorted(found, key=lambda each: sections.index(each.section))


def labels(keys: Sequence[str], found: Sequence[Difference]) -> tuple[str, ...]:
    """A short name for each run, of the fewest fields that tell the runs apart: `lr=0.0003`. `keys`: `name/run_id`.

    Runs whose jobs have names of their own go by these; those that no field tells apart by their run ids.
    """
    names = [key.rpartition("/")[0] for key in keys]
    ids = [key.rpartition("/")[2] for key in keys]
    if len(keys) == 1:
        return (keys[0],)
    if len(set(names)) == len(names):
        return tuple(names)
    chosen = _telling(found, len(keys))
    texts = [
        ", ".join(_said(each, place) for each in chosen if each.values[place] is not None) for place in range(len(keys))
    ]
    texts = [text or name for text, name in zip(texts, ids, strict=True)]
    return told_apart(
        text if texts.count(text) == 1 or text == run_id else f"{text} · {run_id}"
        for text, run_id in zip(texts, ids, strict=True)
    )


def told_apart(names: Iterable[str]) -> tuple[str, ...]:
    """The same names in the same order, those that were there before with a number: no two are alike."""
    found: dict[str, None] = {}
    for name in names:
        number = next(number for number in count(1) if (f"{name} ({number})" if number > 1 else name) not in found)
        found[f"{name} ({number})" if number > 1 else name] = None
    return tuple(found)


def _telling(found: Sequence[Difference], count: int) -> list[Difference]:
    """The fewest fields that tell the most runs apart, found one by one, in the order of the spec."""
    candidates = sorted(found, key=lambda each: each.section in _LATE_SECTIONS)
    groups: list[tuple[str | None, ...]] = [()] * count
    chosen: list[Difference] = []
    while candidates:
        best = max(candidates, key=lambda each: len(set(zip(groups, each.values, strict=True))))
        parted = [(*group, value) for group, value in zip(groups, best.values, strict=True)]
        if len(set(parted)) == len(set(groups)):
            break
        groups = parted
        chosen.append(best)
        candidates.remove(best)
    return [each for each in found if each in chosen]


def _said(difference: Difference, place: int) -> str:
    value = shorten(difference.values[place] or "", _LABEL_VALUE)
    return value if difference.path == "name" else f"{short_name(difference.path)}={value}"


def common_step(facts: Sequence[Facts | None]) -> int | None:
    """The last step up to which all runs have a loss that have one at all; None for fewer than two such runs."""
    ends = [each.loss.iterations[-1] for each in facts if each is not None and each.loss is not None]
    return min(ends) if len(ends) > 1 else None


def best_places(values: Sequence[float | None], goal: Goal | None) -> frozenset[int]:
    """The places of the best of the values that are finite; none where there is no goal, or nothing to choose from."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if goal is None or len(set(finite)) < 2:
        return frozenset()
    best = min(finite) if goal == "min" else max(finite)
    return frozenset(place for place, value in enumerate(values) if value == best)


def facts_of(series: Series) -> Facts:
    """What counts of measurements: steps that a resume has undone do not."""
    loss = series.measured("train/loss")
    if not series.iterations:
        return Facts({}, None)
    values = {
        "best_validation": _finite(series, "validation/loss", min),
        "tokens": series.tokens[series.last],
        "seconds": series.times[series.last] - series.times[0],
        "tokens_per_second": usual_of(series, "throughput/tokens_per_second"),
        "mfu": usual_of(series, "throughput/mfu"),
        "step_seconds": usual_of(series, "throughput/step_seconds"),
        "peak_bytes": _finite(series, "memory/peak_bytes", max),
    }
    return Facts(values, Column(loss.iterations[:], loss.values[:]) if loss is not None else None)


def _measured(run: RunSummary, facts: Facts | None, common: int | None) -> dict[str, float | None]:
    """The measures of a run by name."""
    last = run.values
    known: dict[str, float | None] = {
        "loss": last.get("train/loss"),
        "validation": last.get("validation/loss"),
        "steps": run.iteration,
        "tokens_per_second": last.get("throughput/tokens_per_second"),
        "mfu": last.get("throughput/mfu"),
        "step_seconds": last.get("throughput/step_seconds"),
        "peak_bytes": last.get("memory/peak_bytes"),
        "goodput": run.goodput,
    }
    if facts is None or not facts.values:
        return known
    return {**known, **facts.values, "common_loss": _value_at(facts.loss, common)}


def _value_at(column: Column | None, step: int | None) -> float | None:
    """The value of the last measurement up to a step."""
    if column is None or step is None:
        return None
    place = bisect_right(column.iterations, step) - 1
    return column.values[place] if place >= 0 else None


def _finite(series: Series, key: str, of: Callable[[Sequence[float]], float]) -> float | None:
    """Something of the finite values of a key."""
    column = series.measured(key)
    finite = [] if column is None else [value for value in column.values if math.isfinite(value)]
    return of(finite) if finite else None
