"""From a sweep file to its cells, with every problem at its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.errors import Location, Problem, SpecError, UserError
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import shorten
from orchestrator.spec.documents.composition import Composition, apply_override, compose_files, compose_text
from orchestrator.spec.documents.field_names import hint, resolve
from orchestrator.spec.documents.partial_validation import Examination, PartialSection
from orchestrator.spec.documents.plain_data import to_plain
from orchestrator.spec.messages.document import Document
from orchestrator.spec.sweep import SweepSpec
from orchestrator.spec.yaml.places import Places
from orchestrator.spec.yaml.reader import LocatedValue
from orchestrator.sweeps.axes import Axes, Draws, point_of, read_axes
from orchestrator.sweeps.cells import (
    DERIVED,
    Cell,
    Cells,
    Check,
    PlacedCondition,
    PrunedCell,
    cell_at,
    expand,
    known_part,
)
from orchestrator.sweeps.conditions import ConditionError, read_condition
from orchestrator.sweeps.search.sweep_checks import search_problems


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep and its cells; of a search that draws its own, cells at random points, as examples of what can be drawn.
    `text`: the files as written, one after the other; `cell_at`: the cell of values that were drawn, why it cannot run,
    or None where it does not meet the conditions.
    """

    name: str
    spec: SweepSpec
    cells: Cells
    text: str
    cell_at: Callable[[Draws], Cell | PrunedCell | None]

    @property
    def draws_cells(self) -> bool:
        """Whether a search draws the cells one after the other."""
        return self.spec.search is not None and self.spec.search.strategy == "bayesian"


def load_sweep(
    paths: Sequence[Path],
    overrides: Sequence[str] = (),
    check: Check = lambda plan: (),
    arrays: Sequence[str] = (),
    also: Callable[[PartialSection], list[Problem]] = lambda known: [],
) -> LoadedSweep:
    """The sweep that is written in a file: a job with a `sweep:` section, or a sweep over a `base`; or a job without
    one over the values that `arrays` give, FIELD=VALUE,VALUE,… each.

    `check` says what else keeps a cell from running, or raises SpecError for what is wrong with the whole sweep. Raises
    SpecError with every problem of the files, and with what `also` finds in what is known of them.
    """
    if not paths:
        raise UserError("no sweep was given: name a YAML file with a `sweep:` section", code="no_sweep")
    composition = compose_files(paths)
    for override in overrides:
        apply_override(composition, override)
    if arrays:
        composition = replace(composition, sweep=_sweep_over(composition, arrays))
    sweep = composition.sweep
    if sweep is None:
        raise SpecError(composition.problems or [_no_sweep(composition)])  # a missing file says nothing of anything
    written = LocatedValue({**_entries(composition.root), "sweep": sweep}, composition.root.location)
    places = Places(written, [source for source, _ in composition.texts])
    spec, problems = _spec(sweep)
    problems = [*composition.problems, *problems]
    base = replace(composition, sweep=None)
    if spec is not None:
        axes = read_axes(_entries(sweep), spec)
        conditions, wrong = _conditions(sweep, spec)
        problems += [*axes.problems, *wrong, *search_problems(spec, sweep), *_problems_of_the_base(base, axes)]
        if problems:
            problems += also(known_part(base, _varied(axes))[0])
    if problems or spec is None:
        raise SpecError(places.ordered([places.placed(problem) for problem in problems]))
    cells = expand(base, axes.points(), conditions, check)
    text = "\n".join(f"# {source}\n{text}" for source, text in composition.texts)

    def at(draws: Draws) -> Cell | PrunedCell | None:
        assert spec.random is not None
        return cell_at(base, point_of(_entries(sweep), spec.random, draws), conditions, check)

    return LoadedSweep(spec.name or _job_name(base, cells), spec, cells, text, at)


def _sweep_over(composition: Composition, arrays: Sequence[str]) -> LocatedValue | None:
    """A `sweep:` section with a grid of what was given on the command line."""
    if composition.sweep is not None:
        raise UserError(
            "--array: this file has a `sweep:` section already; start it with `orchestrator sweep run`",
            code="sweep_in_sweep",
        )
    lines = []
    for array in arrays:
        field, equals, values = array.partition("=")
        if not equals or not field.strip() or not values.strip():
            raise UserError(
                f"--array {array}: write FIELD=VALUE,VALUE,… as in --array runtime.seed=1,2,3",
                code="malformed_assignment",
            )
        lines.append(f"    {field.strip()}: [{values}]\n")
    written = compose_text(f"sweep:\n  grid:\n{''.join(lines)}", "--array")
    if written.problems:
        raise SpecError(written.problems)
    return written.sweep


class _SweepFile(Section):
    sweep: SweepSpec


_SWEEP = Document(_SweepFile, "sweep", "`base:` and `grid:`", "orchestrator init")


def _spec(sweep: LocatedValue) -> tuple[SweepSpec | None, list[Problem]]:
    """The section as the schema reads it, or what is wrong with it."""
    tree = LocatedValue({"sweep": sweep}, sweep.location)
    plain = to_plain(tree, _SWEEP.shape, _SWEEP)
    examination = Examination(plain.unavailable, plain.incomplete, root=_SWEEP.shape)
    examination.examine(_SweepFile, plain.data)
    problems = [*plain.problems, *(_located(problem, tree) for problem in examination.problems)]
    return (None, problems) if problems else (_SweepFile.model_validate(plain.data).sweep, [])


def _located(problem: Problem, tree: LocatedValue) -> Problem:
    """The problem with its place. Keys of a sweep hold dots themselves: of those that fit, the longest is meant."""
    written, rest = tree, problem.paths[0]
    while rest:
        content = written.content
        keys = content if isinstance(content, dict) else {f"[{n}]": item for n, item in enumerate(_items(written))}
        fitting = [key for key in keys if f"{rest}.".startswith((f"{key}.", f"{key}["))]
        if not fitting:
            break
        key = max(fitting, key=len)
        written, rest = keys[key], rest[len(key) :].removeprefix(".")
    return replace(problem, location=written.location)


def _conditions(sweep: LocatedValue, spec: SweepSpec) -> tuple[list[PlacedCondition], list[Problem]]:
    written = _entries(sweep).get("when")
    if written is None or spec.when is None:
        return [], []
    places = _items(written) or [written]
    conditions, problems = [], []
    for text, place in zip(spec.when, places, strict=True):
        try:
            condition = read_condition(text)
        except ConditionError as error:
            message = f"{shorten(text)}: {error}"
            problems.append(Problem(message, ("sweep.when",), location=place.location, code="condition_syntax"))
            continue
        paths = {name: name if name in DERIVED else resolve(name) for name in condition.names}
        for name, path in paths.items():
            if path is None:
                message = f"{shorten(text)}: there is no field {shorten(name)}"
                problems.append(Problem(message, ("sweep.when",), hint(name), place.location, "unknown_key"))
        known = {name: path for name, path in paths.items() if path is not None}
        conditions.append(PlacedCondition(condition, known, place.location))
    return conditions, problems


def _problems_of_the_base(base: Composition, axes: Axes) -> list[Problem]:
    """What is wrong with the base whatever the cells say."""
    varied = _varied(axes)
    return [
        problem
        for problem in known_part(base)[1]
        if not problem.paths or not any(_related(problem.paths[0], path) for path in varied)
    ]


def _varied(axes: Axes) -> set[str]:
    """The fields that cells give."""
    varied = {path for part in axes.parts for point in part for path in point}
    return {*varied, "model"} if "model.preset" in varied else varied  # which may give what else is missing there


def _related(one: str, other: str) -> bool:
    return f"{one}.".startswith((f"{other}.", f"{other}[")) or other.startswith(f"{one}.")


def _no_sweep(composition: Composition) -> Problem:
    hint = "write a `sweep:` section, or run the one job with `orchestrator run`"
    place = Location(composition.root.location.source)
    return Problem("says nothing of a sweep", ("sweep",), hint, place, "missing_key")


def _job_name(base: Composition, cells: Cells) -> str:
    written = _entries(base.root).get("name")
    if written is not None and isinstance(name := written.text or written.content, str):
        return name
    return cells.cells[0].job.name if cells.cells else "sweep"


def _items(written: LocatedValue) -> list[LocatedValue]:
    return written.content if isinstance(written.content, list) else []


def _entries(written: LocatedValue) -> dict[str, LocatedValue]:
    return written.content if isinstance(written.content, dict) else {}
