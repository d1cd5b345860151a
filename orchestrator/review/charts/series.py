"""The measurements of a run as columns: read as the log grows, and thinned out so that no peak is lost."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import lt
from pathlib import Path
from typing import Any

from orchestrator.files.stored_files import size_of
from orchestrator.tracking.measurements.latest import usual
from orchestrator.tracking.measurements.metrics import Metric, MetricTail

_BYTES_PER_NUMBER = 8
_BYTES_PER_STEP = 32
_MOST_SMOOTHING = 0.9999
_RECORDS_AT_A_TIME = 2000
"""Records are ten times as large as the columns that are made of them."""
_MOST_IN_A_FIGURE = 4500
"""Points of all its curves together; as `thinned` keeps two of three these are less than 64 KB. A part of the axis that
is asked for has as many."""
_BYTES_OF_A_POINT = 13
"""Of each of these."""
_DIGITS = 7
"""Significant digits of each value if there are many points: a curve shows fewer."""
_HOUR_DIGITS = 6
"""Decimals of an hour on the axis of a figure with many points."""
_FEW = 500


@dataclass
class Column:
    """One key: `iterations` grow strictly, `values` stand beside them; a value may be NaN or infinite. Keys that are
    measured together share their iterations, for as long as they are.

    `undone_…`: what was measured at steps that were done again, in the order in which that happened.
    """

    iterations: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    undone_iterations: array[int] = field(default_factory=lambda: array("q"))
    undone_values: array[float] = field(default_factory=lambda: array("d"))

    def put(self, iteration: int, value: float) -> None:
        """The value of an iteration; of one that was measured again after a resume, the last counts."""
        if len(self.iterations) == len(self.values) + 1 and self.iterations[-1] == iteration:
            self.values.append(value)  # another key of this record came before
            return
        self.part_if_behind()
        if not self.iterations or iteration > self.iterations[-1]:
            self.iterations.append(iteration)
            self.values.append(value)
            return
        place = bisect_left(self.iterations, iteration)
        if self.iterations[place] == iteration:
            self.undone_iterations.append(iteration)
            self.undone_values.append(self.values[place])
            self.values[place] = value
        else:
            self.iterations = self.iterations[:]  # the other keys have no such step
            self.iterations.insert(place, iteration)
            self.values.insert(place, value)

    def part_if_behind(self) -> None:
        """Have iterations of its own where the keys that it shared them with went on without it."""
        if len(self.iterations) > len(self.values):
            self.iterations = self.iterations[: len(self.values)]


@dataclass
class Series:
    """Everything that a run measured. `times` in seconds since the epoch, of each step in `iterations`. `position`: the
    step that was written last; what was measured of later ones, before a resume, counts no more. `offset`: of the log,
    after the last line that was taken in. `flops_per_token`: of its model; None where its start did not say.
    """

    iterations: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    samples: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, Column] = field(default_factory=dict)
    position: int = 0
    offset: int = 0
    flops_per_token: float | None = None

    def add(self, metrics: Iterable[Metric]) -> None:
        """Take in records, in the order in which they were written."""
        for keys, each in groupby(metrics, key=lambda metric: tuple(metric.values)):
            first, *rest = each
            self._put(first)
            if not self._append(rest, keys):
                for metric in rest:
                    self._put(metric)
            self.position = rest[-1].iteration if rest else first.iteration
        for column in self.columns.values():
            column.part_if_behind()

    def _append(self, part: Sequence[Metric], keys: Sequence[str]) -> bool:
        """Take in later steps that measured the same keys, all at once; whether that could be."""
        iterations = [self.iterations[-1], *(metric.iteration for metric in part)]
        columns = [self.columns[key] for key in keys]
        together = columns[0].iterations if columns else array("q")
        are_together = all(column.iterations is together and len(column.values) == len(together) for column in columns)
        if not are_together or not all(map(lt, iterations, iterations[1:])):
            return False
        self.iterations.extend(iterations[1:])
        self.times.extend(metric.time for metric in part)
        self.samples.extend(metric.samples for metric in part)
        self.tokens.extend(metric.tokens for metric in part)
        together.extend(iterations[1:])
        for key, column in zip(keys, columns, strict=True):
            column.values.extend([metric.values[key] for metric in part])
        return True

    def _put(self, metric: Metric) -> None:
        self._place(metric)
        together: array[int] = array("q")
        for key, value in metric.values.items():
            column = self.columns.get(key)
            if column is None:
                column = self.columns[key] = Column(together)
            column.put(metric.iteration, value)

    def _place(self, metric: Metric) -> None:
        facts = (float(metric.time), float(metric.samples), float(metric.tokens))
        place = len(self.iterations)
        if place and metric.iteration <= self.iterations[-1]:
            place = bisect_left(self.iterations, metric.iteration)
            if self.iterations[place] == metric.iteration:
                self.times[place], self.samples[place], self.tokens[place] = facts
                return
        self.iterations.insert(place, metric.iteration)
        for column, fact in zip((self.times, self.samples, self.tokens), facts, strict=True):
            column.insert(place, fact)

    def at(self, iteration: int) -> int:
        """Where an iteration stands in `times` and `tokens`; the last one where it is later than all."""
        return min(bisect_left(self.iterations, iteration), len(self.iterations) - 1)

    @property
    def last(self) -> int:
        """Where the step that was written last stands in `times` and `tokens`."""
        return self.at(self.position)

    def still_counting(self, column: Column) -> int:
        """How many values of a column, from its beginning, no resume from an earlier checkpoint has undone."""
        return bisect_right(column.iterations, self.position)

    def counting(self, column: Column) -> Column:
        """A column as far as its values still count; itself where all of them do."""
        count = self.still_counting(column)
        if count == len(column.iterations):
            return column
        return Column(column.iterations[:count], column.values[:count])

    def measured(self, key: str) -> Column | None:
        """What counts of a key; None where nothing does."""
        column = self.columns.get(key)
        counting = self.counting(column) if column is not None else None
        return counting if counting is not None and counting.values else None

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        columns = self.columns.values()
        arrays = {id(kept): len(kept) for column in columns for kept in (column.iterations, column.values)}
        undone = sum(len(column.undone_values) for column in columns)
        return _BYTES_PER_STEP * len(self.iterations) + _BYTES_PER_NUMBER * (sum(arrays.values()) + 2 * undone)


@dataclass
class GrowingSeries:
    """A metric log and what was read of it so far."""

    path: Path
    series: Series = field(default_factory=Series)

    def refresh(self) -> Series:
        """Take in what was written since; a log that was replaced or removed is read anew."""
        size = size_of(self.path)
        if size < self.series.offset:
            self.series = Series()
        tail = MetricTail(self.path, self.series.offset)
        while found := tail.poll(_RECORDS_AT_A_TIME):
            self.series.add(found)
        self.series.offset = tail.offset
        return self.series


def usual_of(series: Series, key: str) -> float | None:
    """The median of the latest values of a key; None where nothing was measured."""
    column = series.measured(key)
    return None if column is None else usual(column.values)


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Places of at most `most` values (5 or more) that draw the same curve: the first and the last, and of equal
    stretches the least, the greatest and the first that is not finite, which shows as a gap.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    stretches = (most - 2) // 3
    for number in range(stretches):
        begin, end = number * count // stretches, (number + 1) * count // stretches
        kept.update(begin + place for place in _telling(values[begin:end]))
    return sorted(kept)


def share_points(traces: Sequence[dict[str, Any]], beside: int = 0) -> None:
    """Make the figure of many points small: round the values of its traces, and thin out those that have too many
    together, or with the `beside` bytes of all else in the figure.
    """
    count = sum(len(trace["x"]) for trace in traces)
    if count <= _FEW:
        return
    most = max(_FEW, _MOST_IN_A_FIGURE - beside // _BYTES_OF_A_POINT)
    for trace in traces:
        trace["x"] = [round(value, _HOUR_DIGITS) if isinstance(value, float) else value for value in trace["x"]]
        trace["y"] = [None if value is None else float(f"{value:.{_DIGITS}g}") for value in trace["y"]]
        if count > most:
            share = max(5, len(trace["x"]) * most // count)
            places = thinned([math.nan if value is None else value for value in trace["y"]], share)
            trace |= {axis: [trace[axis][place] for place in places] for axis in ("x", "y")}


def _telling(part: Sequence[float]) -> list[int]:
    """Of a stretch of a curve, the places that tell the most."""
    if math.isfinite(sum(part)):  # by far the most frequent, and no loop in Python
        return [part.index(min(part)), part.index(max(part))]
    finite = [place for place, value in enumerate(part) if math.isfinite(value)]
    gap = next((place for place, value in enumerate(part) if not math.isfinite(value)), None)
    ends = [min(finite, key=part.__getitem__), max(finite, key=part.__getitem__)] if finite else []
    return ends if gap is None else [*ends, gap]


def smoothed(values: Sequence[float], weight: float) -> Sequence[float]:
    """The exponential moving average in which each value counts `weight` times as much as the next, without the bias
    of its beginning; values that are not finite stay as they are and are left out of it. 0: the values themselves.
    """
    weight = min(max(weight, 0.0), _MOST_SMOOTHING)
    if weight == 0:
        return values
    average, share = 0.0, 0.0
    result = array("d")
    for value in values:
        if not math.isfinite(value):
            result.append(value)
            continue
        average = weight * average + (1 - weight) * value
        share = weight * share + (1 - weight)
        result.append(average / share)
    return result
