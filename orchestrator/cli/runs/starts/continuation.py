"""Which run `run` and `submit` continue, and what they ask before they start another one."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.common import warn
from orchestrator.cli.run_start import describe_completed, label, wait_for_previous
from orchestrator.cli.runs.resume import check_length, describe_changes, samples_again
from orchestrator.cli.runs.starts.submission import describe_active
from orchestrator.errors import RunIsHeld, SpecChanged, UserError
from orchestrator.launch.continuation import Continuation, find_continuation, has_steps_left
from orchestrator.launch.runs import add_generation, attach_or_create, create_run
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import in_command
from orchestrator.spec.loading import LoadedJob
from orchestrator.spec.schema.diff import Change

New = Annotated[bool, typer.Option("--new", help="Start another run, even if one exists.")]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes", help="Continue the run of this name with changes that alter the course of its training."
    ),
]
Answer = Literal["continue", "new", "nothing"]


def run_continued(
    loaded: LoadedJob, folder: Path, *, new: bool, allow_changes: bool, from_scratch: bool, as_json: bool
) -> Continuation | None:
    """The run that a job continues; None where a new one is to begin.

    Raises SpecChanged where a person has to choose and cannot be asked, RunIsHeld where the run lives with another
    spec, and typer.Exit for who chose nothing.
    """
    if new and allow_changes:
        raise UserError("--new starts another run, and --allow-changes continues the existing one: choose one")
    if new:
        return None
    job, text = loaded.job, loaded.text
    found = find_continuation(job, text, folder, from_scratch=from_scratch, warn=warn)
    if found is None or not found.changes:
        return found
    wait_for_previous(found.run, quiet=as_json)
    status = status_of(found.run)
    if status.is_active:
        raise RunIsHeld(
            f"run {label(found.run)} is active with another spec ({status.describe()}); nothing was started or "
            f"changed.\n{all_changes([found])}\n"
            f"      To continue it with these changes, stop it first (`orchestrator cancel {in_command(found.run)}`), "
            "which saves; to start another run, add --new."
        )
    if found.is_settled or (allow_changes and not found.is_forbidden):
        return found
    answer = choose([found], f"run {label(found.run)} has another spec", as_json=as_json)
    return found if answer == "continue" else None


def begin_run(loaded: LoadedJob, folder: Path, *, new: bool) -> tuple[Continuation, bool]:
    """The run of a job that continues none, and whether it was made now: without `new`, one with the same spec may be
    there by now.
    """
    job, text = loaded.job, loaded.text
    run, is_new = (create_run(job, text, folder), True) if new else attach_or_create(job, text, folder)
    return Continuation(run, job), is_new


def needs_no_start(
    found: Continuation, status: RunStatus, *, is_on_its_way: bool, from_scratch: bool, as_json: bool
) -> bool:
    """Whether a run is on its way or has done all its steps, which is told then."""
    if is_on_its_way:
        describe_active(status, as_json)
        return True
    if status.state == "completed" and not from_scratch and not has_steps_left(found, status.checkpoints):
        _tell_completed(found, status, as_json)
        return True
    return False


def take_changes(found: Continuation, written: str, *, from_scratch: bool, as_json: bool) -> None:
    """Make the edited job the spec of the run that it continues, and say so. Raises UserError where no step is left
    to train.
    """
    if not found.changes:
        return
    typer.echo(f"run {label(found.run)} continues with these changes:\n{all_changes([found])}", err=as_json)
    if not from_scratch:
        if (repeated := samples_again(found.run, found.job)) is not None:
            typer.echo(repeated, err=as_json)
        check_length(found.run, found.job, quiet=as_json)
    add_generation(found.run, found.job, written)


def _tell_completed(found: Continuation, status: RunStatus, as_json: bool) -> None:
    """Say that there is nothing left to do, and how the job differs from the completed run."""
    describe_completed(found.run, status, as_json)
    if found.changes:
        told = f"      This job differs from it, but the differences no longer have an effect:\n{all_changes([found])}"
        typer.echo(told, err=as_json)


def choose(found: Sequence[Continuation], what: str, *, as_json: bool) -> Answer:
    """Ask a person whether runs are continued with changes. Raises SpecChanged where nobody can be asked, and
    typer.Exit where nothing is to be started.
    """
    forbidden = any(each.is_forbidden for each in found)
    told = f"{what}:\n{all_changes(found)}"
    if as_json or not _can_ask():
        cannot = "forbidden changes cannot be applied to an existing run" if forbidden else ""
        ways = cannot or "to continue with these changes, add --allow-changes"
        raise SpecChanged(
            f"nothing was started: {told}\n      {ways[0].upper()}{ways[1:]}; to start another run, add --new."
        )
    typer.echo(told, err=True)
    answers: tuple[Answer, ...] = ("new", "nothing") if forbidden else ("continue", "new", "nothing")
    answer = _answer(answers)
    if answer == "nothing":
        typer.echo("nothing was started", err=True)
        raise typer.Exit(2)
    return answer


def all_changes(found: Sequence[Continuation]) -> str:
    """The changes of several runs as lines, without duplicates."""
    changes = [change for each in found for change in each.changes]
    return _indented(list({(change.path, str(change.old), str(change.new)): change for change in changes}.values()))


def _answer(answers: Sequence[Answer]) -> Answer:
    """The answer typed: a word or the start of one; "nothing" at the end of the input."""
    while True:
        try:
            typed = str(typer.prompt(f"choose {', '.join(answers[:-1])} or {answers[-1]}", default="nothing", err=True))
        except typer.Abort:
            return "nothing"
        meant = [answer for answer in answers if typed and answer.startswith(typed.strip().lower())]
        if len(meant) == 1:
            return meant[0]


def _can_ask() -> bool:
    """Whether a terminal can answer this process: in the background, reading from it would stop the process."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def _indented(changes: Sequence[Change]) -> str:
    return textwrap.indent(describe_changes(list(changes)), " " * 6)
