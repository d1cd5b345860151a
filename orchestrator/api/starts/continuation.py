"""Which run `run` and `submit` continue, and what they ask before they start another one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.api.starts.previous_launch import wait_for_previous
from orchestrator.api.starts.reporter import Answer, Reporter
from orchestrator.api.starts.run_sentences import completed_already, label, on_its_way
from orchestrator.api.starts.spec_changes import check_length, describe_changes, samples_again
from orchestrator.errors import RunIsHeld, SpecChanged, UserError
from orchestrator.launch.continuation import Continuation, find_continuation, has_steps_left
from orchestrator.launch.runs import add_generation, attach_or_create, create_run
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import in_command
from orchestrator.spec.loading import LoadedJob
from orchestrator.spec.schema.diff import Change

_TAGS = "tracking.tags"


class StartOptions(NamedTuple):
    """What a person allows of a start."""

    new: bool = False
    allow_changes: bool = False
    allow_warnings: bool = False
    from_scratch: bool = False


class NoStart(NamedTuple):
    """A run that needs no start now."""

    found: Continuation
    status: RunStatus
    why: Literal["on its way", "completed"]


def no_start_sentence(no_start: NoStart) -> str:
    """Why nothing is started, and what can be done."""
    found, status, why = no_start
    said = on_its_way(status) if why == "on its way" else completed_already(found.run, status)
    if any(change.path.startswith(_TAGS) for change in found.changes):
        said += f"\n      Tags need no start: orchestrator tag {in_command(found.run)} TAG"
    return said


def run_continued(loaded: LoadedJob, folder: Path, options: StartOptions, reporter: Reporter) -> Continuation | None:
    """The run that a job continues; None where a new one is to begin.

    Raises SpecChanged where a person has to choose and cannot be asked, and RunIsHeld where the run lives with another
    spec.
    """
    if options.new and options.allow_changes:
        raise UserError(
            "--new starts another run, and --allow-changes continues the existing one: choose one",
            code="conflicting_options",
        )
    if options.new:
        return None
    job, text = loaded.job, loaded.text
    found = find_continuation(job, text, folder, from_scratch=options.from_scratch, warn=reporter.warn)
    if found is None or not found.changes:
        return found
    wait_for_previous(found.run, reporter)
    status = status_of(found.run)
    if status.is_active:
        raise RunIsHeld(
            f"run {label(found.run)} is active with another spec ({status.describe()}); nothing was started or "
            f"changed.\n{all_changes([found])}\n"
            f"      To continue it with these changes, stop it first (`orchestrator cancel {in_command(found.run)}`), "
            "which saves; to start another run, add --new."
        )
    if found.is_settled or (options.allow_changes and not found.is_forbidden):
        return found
    answer = choose([found], f"run {label(found.run)} has another spec", reporter)
    return found if answer == "continue" else None


def begin_run(loaded: LoadedJob, folder: Path, *, new: bool) -> tuple[Continuation, bool]:
    """The run of a job that continues none, and whether it was made now: without `new`, one with the same spec may be
    there by now.
    """
    job, text = loaded.job, loaded.text
    run, is_new = (create_run(job, text, folder), True) if new else attach_or_create(job, text, folder)
    return Continuation(run, job), is_new


def needs_no_start(
    found: Continuation, status: RunStatus, *, is_on_its_way: bool, from_scratch: bool
) -> NoStart | None:
    """Whether a run is on its way or has done all its steps."""
    if is_on_its_way:
        return NoStart(found, status, "on its way")
    if status.state == "completed" and not from_scratch and not has_steps_left(found, status):
        return NoStart(found, status, "completed")
    return None


def take_changes(found: Continuation, written: str, reporter: Reporter, *, from_scratch: bool) -> None:
    """Make the edited job the spec of the run that it continues, and say so. Raises UserError where no step is left
    to train.
    """
    if not found.changes:
        return
    reporter.say(f"run {label(found.run)} continues with these changes:\n{all_changes([found])}", "change")
    if not from_scratch:
        if (repeated := samples_again(found.run, found.job)) is not None:
            reporter.say(repeated, "change")
        check_length(found.run, found.job, reporter)
    add_generation(found.run, found.job, written)


def choose(found: Sequence[Continuation], what: str, reporter: Reporter) -> Answer:
    """Ask a person whether runs are continued with changes. Raises SpecChanged where nobody can be asked."""
    lost = ", ".join(label(each.run) for each in found if each.is_lost)
    forbidden = any(each.is_forbidden for each in found)
    told = f"{what}:\n{all_changes(found)}"
    way = "To continue with these changes, add --allow-changes"
    if lost:
        way = f"No whole checkpoint is left of {lost} to continue from"
    elif forbidden:
        way = "Forbidden changes cannot be applied to an existing run"
    asked = f"{told}\n      {way}" if lost else told
    answer = reporter.choose(asked, ("new", "nothing") if forbidden else ("continue", "new", "nothing"))
    if answer is None:
        raise SpecChanged(f"nothing was started: {told}\n      {way}; to start another run, add --new.")
    return answer


def all_changes(found: Sequence[Continuation]) -> str:
    """The changes of several runs as lines, without duplicates."""
    changes = [change for each in found for change in each.changes]
    return _indented(list({(change.path, str(change.old), str(change.new)): change for change in changes}.values()))


def _indented(changes: Sequence[Change]) -> str:
    return textwrap.indent(describe_changes(list(changes)), " " * 6)
