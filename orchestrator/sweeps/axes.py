"""The parts of a sweep as lists of points: each point gives values to some fields."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import Problem
from orchestrator.fields.formatting import show
from orchestrator.fields.refusals import Unavailable
from orchestrator.spec.documents.field_names import hint, resolve
from orchestrator.spec.documents.partial_validation import Examination, PartialSection
from orchestrator.spec.documents.plain_data import to_plain
from orchestrator.spec.schema.shape import JOB, sections, shape_at
from orchestrator.spec.sweep import DistributionSpec, RandomSpec, SweepSpec
from orchestrator.spec.yaml.reader import LocatedValue

MAX_POINTS = 100_000
"""Combinations before filters: more is a slip, and would take minutes to look through."""

_FIXED = {
    "launch.runs_dir": "the runs of a sweep are in one folder",
    "launch.cluster": "a sweep runs on one cluster",
    "extends": "every cell goes over the same files",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of one field. `value`: as the schema reads it."""

    path: str
    written: LocatedValue
    value: Any


Point = dict[str, Setting]
"""Settings by path."""
Draws = Mapping[str, float]
"""What was drawn for each field of `random`, as the sweep names them: a number, or the place of a choice."""


@dataclass(frozen=True)
class Axes:
    """The parts of a sweep, to be combined each with each, and what is wrong with them."""

    parts: list[list[Point]]
    problems: list[Problem]

    @property
    def size(self) -> int:
        """Combinations."""
        return math.prod(len(part) for part in self.parts)

    def points(self) -> Iterator[Point]:
        """Every combination; the last part varies fastest."""
        for combination in itertools.product(*self.parts):
            point: Point = {}
            for settings in combination:
                point |= settings
            yield point


def read_axes(written: dict[str, LocatedValue], spec: SweepSpec) -> Axes:
    """The axes of a `sweep:` section whose structure is right."""
    reader = _Reader([])
    parts: list[list[Point]] = []
    for name, values in _entries(written.get("grid")):
        parts.append(reader.column(name, values))
    parts += reader.side_by_side(written.get("zip"))
    if points := _items(written.get("list")):
        parts.append([reader.point(item) for item in points])
    if spec.random is not None:
        columns = reader.columns(written["random"], spec.random, spec.random.count, _at_random(spec.random))
        parts.append(reader.rows(columns))
    if not parts and not reader.problems:
        place = next(iter(written.values())).location if written else None
        message = "says nothing to vary"
        way_out = "write grid, zip, list or random: for example grid: {optimizer.lr: [1e-4, 3e-4]}"
        reader.problems.append(Problem(message, ("sweep",), way_out, place, "nothing_to_vary"))
    axes = Axes(parts, reader.problems)
    reader.problems.extend(_overlaps(parts))
    if not reader.problems and axes.size > MAX_POINTS:
        counts = " · ".join(str(len(part)) for part in parts)
        message = f"makes {counts} = {axes.size:,} combinations; a sweep has at most {MAX_POINTS:,}"
        reader.problems.append(Problem(message, ("sweep",), "use random, or fewer values", code="too_many_cells"))
    return axes


def point_of(written: dict[str, LocatedValue], random: RandomSpec, draws: Draws) -> Point:
    """The point of a sweep whose axes are right at which a search has drawn these values."""
    reader = _Reader([])
    columns = reader.columns(written["random"], random, 1, lambda name, path, number: draws[name])
    [point] = reader.rows(columns)
    return point


def _entries(section: LocatedValue | None) -> Iterable[tuple[str, LocatedValue]]:
    return section.content.items() if section is not None and isinstance(section.content, dict) else ()


def _items(values: LocatedValue | None) -> list[LocatedValue]:
    return values.content if values is not None and isinstance(values.content, list) else []


def _overlaps(parts: list[list[Point]]) -> Iterator[Problem]:
    """Two parts, or two keys of one, that give a value to the same field, or to one inside the other."""
    seen: dict[str, tuple[int, Setting]] = {}
    for number, part in enumerate(parts):
        for path, setting in {path: setting for point in part for path, setting in point.items()}.items():
            for other, (where, first) in seen.items():
                inside = path.startswith(f"{other}.") or other.startswith(f"{path}.")
                if where != number and (inside or path == other):
                    message = "is varied twice" if path == other else f"is part of {other}, which is varied too"
                    place = setting.written.location
                    yield Problem(message, (path,), f"first at {first.written.location}", place, "varied_twice")
            seen.setdefault(path, (number, setting))


@dataclass
class _Reader:
    problems: list[Problem]

    def column(self, name: str, values: LocatedValue) -> list[Point]:
        """One field with a list of values."""
        path = self.path(name, values, _items(values))
        if path is None:
            return []
        if not _items(values):
            message = "expects a list of values"
            self.problems.append(Problem(message, (name,), location=values.location, code="wrong_type"))
        return [point for item in _items(values) if (point := self.value(path, item)) is not None]

    def point(self, item: LocatedValue) -> Point:
        """One mapping of fields to values."""
        point: Point = {}
        for name, value in _entries(item):
            path = self.path(name, value, [value])
            settings = (self.value(path, value) or {}) if path is not None else {}
            for twice in [path for path in settings if any(_inside(path, other) for other in point)]:
                message = "is given twice in one cell"
                self.problems.append(Problem(message, (twice,), location=value.location, code="varied_twice"))
            point |= settings
        return point

    def side_by_side(self, section: LocatedValue | None) -> list[list[Point]]:
        """The rows of `zip`, as one part."""
        columns = [(name, values) for name, values in _entries(section)]
        if not columns:
            return []
        lengths = {name: len(_items(values)) for name, values in columns}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            message = f"paired values must have the same number: {said}"
            place = columns[0][1].location
            self.problems.append(Problem(message, ("sweep.zip",), location=place, code="unequal_lengths"))
            return []
        return [self.rows([self.column(name, values) for name, values in columns])]

    def columns(
        self, section: LocatedValue, random: RandomSpec, count: int, draw: Callable[[str, str, int], float]
    ) -> list[list[Point]]:
        """What `draw` gives for each field of `random`, by its name, its path and the number of the draw."""
        assert isinstance(section.content, dict)
        columns: list[list[Point]] = []
        for name, written in _entries(section.content["fields"]):
            choices = _items(written.content.get("choice")) if isinstance(written.content, dict) else []
            path = self.path(name, written, choices)
            distribution = random.fields.get(name)
            if distribution is None:
                message = "expects a distribution"
                self.problems.append(Problem(message, (name,), location=written.location, code="wrong_type"))
            if path is None or distribution is None:
                continue
            legal = [point for item in choices if (point := self.value(path, item)) is not None]
            column: list[Point] = []
            for number in range(count if len(legal) == len(choices) else 0):
                found = draw(name, path, number)
                drawn = legal[int(found)] if legal else self.value(path, _number(found, distribution, written))
                if drawn is None:
                    break  # what is wrong with one is said once
                column.append(drawn)
            columns.append(column)
        return columns

    def rows(self, columns: list[list[Point]]) -> list[Point]:
        """Columns of settings as rows. A field that two of them set is a problem."""
        self.problems.extend(_overlaps(columns))
        return [
            {path: setting for point in row for path, setting in point.items()} for row in zip(*columns, strict=False)
        ]

    def path(self, name: str, written: LocatedValue, values: Sequence[LocatedValue]) -> str | None:
        path = resolve(name, [value.content for value in values])
        if path is None:
            message = "there is no such field in a job spec"
            self.problems.append(Problem(message, (name,), hint(name), written.location, "unknown_key"))
        elif path in _FIXED:
            problem = Problem("cannot be varied", (name,), _FIXED[path], written.location, "fixed_key")
            self.problems.append(problem)
            return None
        return path

    def value(self, path: str, written: LocatedValue) -> Point | None:
        """A value for a field, or for several that are in one section; None when there is something wrong with it."""
        shape = shape_at(tuple(path.split(".")))
        if shape is not None and shape.kind == "section" and isinstance(written.content, dict) and written.content:
            inner = self.point(
                LocatedValue({f"{path}.{key}": item for key, item in written.content.items()}, written.location)
            )
            return inner if len(inner) >= len(written.content) else None
        setting = self.setting(path, written)
        return {path: setting} if setting is not None else None

    def setting(self, path: str, written: LocatedValue) -> Setting | None:
        """The value for the field, checked by the schema on its own."""
        plain = to_plain(nested({path: written}), JOB)
        place, data = _section_of(path), plain.data
        for part in place:
            data = data.get(part, {})
        examination = Examination(plain.unavailable, [(), *plain.incomplete])
        view = examination.examine(sections()[place], data, place)
        found = [*plain.problems, *examination.problems]
        if found:
            self.problems.extend(replace(problem, location=written.location) for problem in found)
            return None
        key = ".".join(path.split(".")[len(place) :])
        return Setting(path, written, value_at(view, key) if written.content is not None else default_of(path))


def _section_of(path: str) -> tuple[str, ...]:
    """The innermost section that a field is in."""
    place = tuple(path.split("."))[:-1]
    while place not in sections():
        place = place[:-1]
    return place


def _inside(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _at_random(spec: RandomSpec) -> Callable[[str, str, int], float]:
    """Draws that depend on the seed, the field and their number only."""

    def draw(name: str, path: str, number: int) -> float:
        source, distribution = random.Random(f"{spec.seed}/{path}/{number}"), spec.fields[name]
        if distribution.choice is not None:
            return source.randrange(len(distribution.choice))
        if distribution.integers is not None:
            return source.randint(*distribution.integers)
        if distribution.loguniform is not None:
            low, high = distribution.loguniform
            return math.exp(source.uniform(math.log(low), math.log(high)))
        assert distribution.uniform is not None
        return source.uniform(*distribution.uniform)

    return draw


def _number(number: float, distribution: DistributionSpec, written: LocatedValue) -> LocatedValue:
    if distribution.integers is not None:
        return LocatedValue(int(number), written.location, str(int(number)))
    ends = distribution.loguniform or distribution.uniform
    assert ends is not None
    low, high = ends
    number = min(max(float(f"{number:.4g}"), low), high)  # four digits say enough, and can be read
    return LocatedValue(number, written.location, repr(number))


def nested(values: dict[str, LocatedValue]) -> LocatedValue:
    """Values by dotted path as one tree."""
    root: dict[str, LocatedValue] = {}
    place = next(iter(values.values())).location
    for path, written in values.items():
        *parents, key = path.split(".")
        folder = root
        for parent in parents:
            inner = folder.setdefault(parent, LocatedValue({}, written.location)).content
            assert isinstance(inner, dict)
            folder = inner
        folder[key] = written
    return LocatedValue(root, place)


def value_at(view: PartialSection | Any, path: str) -> Any:
    """The value of a field of a job or of the known part of one. Raises Unavailable where it is not known."""
    value = view
    for part in path.split("."):
        if value is None:
            return None
        if isinstance(value, dict):
            if part not in value:
                raise Unavailable(path)
            value = value[part]
        else:
            value = getattr(value, part)
    return value


def default_of(path: str) -> Any:
    """The schema's default; None for what has none."""
    *parents, key = path.split(".")
    section = sections().get(tuple(parents))
    info = section.model_fields.get(key) if section is not None else None
    return info.get_default(call_default_factory=True) if info is not None and not info.is_required() else None


def describe(setting: Setting) -> str:
    """The value in the name of a cell."""
    content = setting.written.content
    if isinstance(content, dict | list):
        return "…"
    return setting.written.text or (content if isinstance(content, str) else show(content))
