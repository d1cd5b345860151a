"""The cells of a sweep: its points as complete jobs, checked and planned, those that cannot run set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator.errors import Location, Problem, SpecError
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import shorten
from orchestrator.fields.refusals import Unavailable
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.spec.documents.composition import Composition, apply_preset, merge
from orchestrator.spec.documents.field_names import short_name
from orchestrator.spec.documents.partial_validation import Examination, PartialSection
from orchestrator.spec.documents.plain_data import to_plain
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, load_composition
from orchestrator.spec.schema.shape import JOB
from orchestrator.sweeps.axes import Point, describe, nested, value_at
from orchestrator.sweeps.conditions import Condition, ConditionError

MAX_CELLS = 10_000

DERIVED = {
    "world_size": "world_size",
    "parallelism.data_parallel_size": "data_parallel_size",
    "batch.global_batch_size": "global_batch_size",
    "batch.num_micro_batches": "num_micro_batches",
    "launch.gpus_per_node": "processes_per_node",
}
"""What follows from other fields where it is not written: path → the job's property."""

Check = Callable[[Plan], Sequence[Problem]]
"""Says why a job cannot run; nothing for one that can. Raises SpecError for what is wrong with the whole sweep."""


@dataclass(frozen=True)
class PlacedCondition:
    """A condition of the sweep and where it was written. `paths`: name → field."""

    condition: Condition
    paths: Mapping[str, str]
    location: Location

    def needs_the_job(self, point: Point) -> bool:
        """Whether it asks for what follows from other fields of a cell, which only a whole job can tell."""
        preset = "model.preset" in point
        return any(path in DERIVED or (preset and path.startswith("model.")) for path in self.paths.values())

    def holds(self, cell: str, value_of: Callable[[str], Any]) -> bool:
        """Whether the cell meets it. `value_of` takes a path. Raises SpecError when that cannot be said."""

        def lookup(name: str) -> Any:
            try:
                value = value_of(self.paths[name])
            except Unavailable as error:
                raise ConditionError(f"{self.paths[name]} is not set and has no default") from error
            if isinstance(value, Section | PartialSection):
                raise ConditionError(f"{name} is a section; name one of its fields")
            return value

        try:
            return self.condition.holds(lookup)
        except ConditionError as error:
            message = f"{shorten(self.condition.text)}: {error}"
            raise SpecError(
                [Problem(message, ("sweep.when",), f"in the cell {cell}", self.location, "condition_failed")]
            ) from error


@dataclass(frozen=True)
class Cell:
    """One job of a sweep. `id` is its configuration hash: the same spec is the same cell, whatever is around it."""

    id: str
    name: str
    values: dict[str, str]
    """What it was given, by path, as text for people."""
    loaded: LoadedJob

    @property
    def job(self) -> JobSpec:
        """Its job spec."""
        return self.loaded.job


@dataclass(frozen=True)
class PrunedCell:
    """A point that cannot run, and why."""

    name: str
    values: dict[str, str]
    problems: list[Problem]

    @property
    def reason(self) -> str:
        """Why, in one line."""
        first = self.problems[0]
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{first.paths[0]}: {first.message}{more}" if first.paths else f"{first.message}{more}"


@dataclass
class Cells:
    """What a sweep comes to."""

    cells: list[Cell] = field(default_factory=list)
    pruned: list[PrunedCell] = field(default_factory=list)
    filtered: int = 0
    """Points that do not meet the conditions."""
    repeated: int = 0
    """Points that are the same job as an earlier one."""


def expand(base: Composition, points: Iterable[Point], conditions: Sequence[PlacedCondition], check: Check) -> Cells:
    """The cells that the points make of the base.

    Raises SpecError for a condition that cannot be evaluated, and for too many cells.
    """
    expansion = _Expansion(base, conditions, check)
    found, seen, names = Cells(), set[str](), Counter[str]()
    for point in points:
        cell = expansion.cell(point)
        if cell is None:
            found.filtered += 1
        elif isinstance(cell, PrunedCell):
            found.pruned.append(cell)
        elif cell.id in seen:
            found.repeated += 1
        else:
            seen.add(cell.id)
            names[cell.name] += 1
            if names[cell.name] > 1:
                cell = replace(cell, name=f"{cell.name}-{names[cell.name]}")
            found.cells.append(cell)
        if len(found.cells) + len(found.pruned) > MAX_CELLS:
            message = f"makes more than {MAX_CELLS:,} cells"
            raise SpecError(
                [Problem(message, ("sweep",), "use random, or fewer values", base.root.location, "too_many_cells")]
            )
    return found


def cell_at(
    base: Composition, point: Point, conditions: Sequence[PlacedCondition], check: Check
) -> Cell | PrunedCell | None:
    """The cell of one point, or why it cannot run; None when it does not meet the conditions."""
    return _Expansion(base, conditions, check).cell(point)


class _Expansion:
    def __init__(self, base: Composition, conditions: Sequence[PlacedCondition], check: Check) -> None:
        self._base = base
        self._check = check
        self._known = known_part(base)[0]
        self._conditions = conditions

    def cell(self, point: Point) -> Cell | PrunedCell | None:
        """The cell of a point, or why it cannot run; None when it does not meet the conditions."""
        values = {path: describe(setting) for path, setting in point.items()}
        name = ",".join(f"{short_name(path)}={shorten(value, 40)}" for path, value in values.items())
        late = [condition for condition in self._conditions if condition.needs_the_job(point)]
        early = [condition for condition in self._conditions if condition not in late]
        if not all(condition.holds(name, partial(self._value, point)) for condition in early):
            return None
        try:
            loaded = self._load(point, name, values)
            if not all(condition.holds(name, partial(_value_of_job, loaded.job)) for condition in late):
                return None
            plan = make_plan(loaded.job)
        except SpecError as error:
            if any(problem.paths[:1] == ("sweep.when",) for problem in error.problems):
                raise
            return PrunedCell(name, values, error.problems)
        try:
            problems = self._check(plan)
        except SpecError as error:
            places = loaded.places
            raise SpecError(places.ordered([places.placed(problem) for problem in error.problems])) from error
        return (
            PrunedCell(name, values, list(problems)) if problems else Cell(loaded.job.config_hash, name, values, loaded)
        )

    def _load(self, point: Point, name: str, values: dict[str, str]) -> LoadedJob:
        base = self._base
        over = nested({path: setting.written for path, setting in point.items()})
        note = "".join(f"# --set {path}={value}\n" for path, value in values.items())
        texts = [*base.texts, (f"cell {name}", note)]
        composition = replace(
            base,
            root=merge(base.root, over),
            problems=list(base.problems),
            incomplete=list(base.incomplete),
            texts=texts,
        )
        apply_preset(composition)
        return load_composition(composition)

    def _value(self, point: Point, path: str) -> Any:
        if path in point:
            return point[path].value
        return value_at(self._known, path)


def known_part(base: Composition, varied: Iterable[str] = ()) -> tuple[PartialSection, list[Problem]]:
    """What the base says by itself of fields that are not `varied`, defaults included, and what is wrong with it."""
    composition = replace(base, problems=[], incomplete=list(base.incomplete))
    apply_preset(composition)
    plain = to_plain(composition.root, JOB)
    examination = Examination({*plain.unavailable, *varied}, [*composition.incomplete, *plain.incomplete])
    view = examination.examine(JobSpec, plain.data)
    return view, [*composition.problems, *plain.problems, *examination.problems]


def _value_of_job(job: JobSpec, path: str) -> Any:
    return getattr(job, DERIVED[path]) if path in DERIVED else value_at(job, path)
