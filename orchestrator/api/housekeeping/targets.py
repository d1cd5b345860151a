"""What a name means where runs and sweeps can be meant."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import RunNotFound, UserError
from orchestrator.launch.run_names import shown_name
from orchestrator.launch.runs import find_run, runs_named
from orchestrator.run_directory.rundir import (
    RunDir,
    cell_of,
    membership_of,
    named_in_command,
    write_refusal,
)
from orchestrator.run_directory.runs_folder import RUN_ID
from orchestrator.spec.messages.suggestions import closest
from orchestrator.sweeps.ledger import FOLDER, SweepDir, all_sweeps, find_sweep, sweep_dir

Target = RunDir | SweepDir


def find_target(text: str, runs_dir: Path) -> Target:
    """The run that `find_run` finds, or the sweep of that name; `sweeps/NAME` is always the sweep. A name that cells of
    a sweep share with it is the sweep's. Raises RunNotFound, and UserError where both are meant.
    """
    if text.startswith(f"{FOLDER}/"):
        return find_sweep(text.removeprefix(f"{FOLDER}/"), runs_dir)
    sweep = sweep_dir(text, runs_dir) if text and "/" not in text and "\0" not in text else None
    sweep = sweep if sweep is not None and sweep.is_planned else None
    try:
        run = find_run(text, runs_dir)
    except RunNotFound as error:
        if sweep is not None:
            return sweep
        named = SweepDir(Path(text).absolute())
        if named.is_planned:
            return named
        near = closest(text, [each.name for each in all_sweeps(runs_dir)])
        if near:
            raise RunNotFound(f"{error}\n      Or did you mean sweep {' or '.join(near)}?") from error
        raise
    if sweep is None or text not in (run.name, shown_name(run)):
        return run
    if cell_of(run) is not None:
        return sweep
    words = named_in_command(f"{FOLDER}/{sweep.name}", runs_dir)
    raise UserError(
        f"{text} is a run and a sweep: name the run {run.run_id}, or the sweep {words}", code="ambiguous_target"
    )


def the_only_run(text: str, run: RunDir, runs_dir: Path) -> RunDir:
    """The run, where it is the only one that its job's name can mean. Raises UserError for a name of several: what is
    deleted is named, not guessed.
    """
    several = runs_named(text, runs_dir) if text == run.name else []
    if len(several) > 1:
        listed = "\n".join(f"      {each.name}/{each.run_id}" for each in several)
        raise UserError(f"{text} has {len(several)} runs; name those that are meant:\n{listed}", code="ambiguous_run")
    return run


@contextlib.contextmanager
def told_of(what: str) -> Iterator[None]:
    """Where the system refuses to write, raises UserError: to what nothing was done, where, why, and the way out."""
    try:
        yield
    except OSError as error:
        if (refusal := write_refusal(error, elsewhere=False)) is None:
            raise
        raise UserError(f"{what}: {refusal}", code="housekeeping_not_possible") from error


def folder_of_runs(target: Target) -> Path:
    """The runs folder that a target lies in."""
    return target.path.parent.parent


def cells_of(sweep: SweepDir) -> list[RunDir]:
    """The runs that are there of those that were made for a sweep, also for cells that left it. A run that was there
    before it, or is another sweep's as well, is not among them.
    """
    runs = [sweep.run(entry) for entry in (*sweep.left(), *sweep.planned().cells)]
    own = [run for run in runs if RUN_ID.fullmatch(run.run_id) and run.name != FOLDER and cell_of(run) is not None]
    return [run for run in own if membership_of(run).get("sweep") == sweep.name]
