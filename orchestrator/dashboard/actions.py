"""What visitors may do where actions are allowed: the commands that a person would type, started as programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.launch.run_names import shown_name
from orchestrator.review.damage import readable
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.table import STATES
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command
from orchestrator.sweeps.ledger import FOLDER, SweepDir

_MOST_SECONDS = 150.0
_MOST_LINES = 12


@dataclass(frozen=True)
class Action:
    """`states`: of the runs for which it makes sense. `asks` and `explains` stand on the page that asks for a yes, and
    `field` names what is typed there, where that is wanted.
    """

    name: str
    label: str
    asks: str
    explains: str
    states: tuple[str, ...]
    arguments: tuple[str, ...]
    field: str = ""


ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action(
            "cancel",
            "Cancel",
            "Cancel this run?",
            "It saves after its current step and ends, or is removed from a queue. It can be resumed later.",
            ("running", "queued"),
            ("--no-wait",),
        ),
        Action(
            "resume",
            "Resume",
            "Resume this run?",
            "It continues from its last checkpoint, where it ran before: on this machine, or as a job on its cluster.",
            ("created", "stopped", "cancelled", "failed", "lost"),
            ("--detach",),
        ),
    )
}
"""What can be done with a run, by the name of the command."""


_ENDED = ("created", "imported", "completed", "stopped", "cancelled", "failed", "lost")
HOUSEKEEPING: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action("tag", "Tags", "Which tags?", "Separated by spaces. Nothing is started.", STATES, (), "Tags"),
        Action("note", "Note", "Which note?", "In place of the present one. Nothing is started.", STATES, (), "Note"),
        Action(
            "rename",
            "Rename",
            "Rename this run?",
            "Its folder and id stay, and every command still finds it by its earlier names.",
            STATES,
            (),
            "Name",
        ),
        Action("archive", "Archive", "Archive this run?", "Lists hide it. Nothing is removed.", STATES, ()),
        Action("unarchive", "Show again", "Show this run again?", "Lists show it again.", STATES, ("--undo",)),
        Action(
            "delete",
            "Delete",
            "Delete this run?",
            "It moves to the trash of the runs folder, and can be put back until `orchestrator prune` removes it.",
            _ENDED,
            ("--yes",),
        ),
    )
}
"""What keeps runs in order, on the page of a run."""


@dataclass(frozen=True)
class Outcome:
    """What a command came to, in its own words."""

    is_done: bool
    text: str


def actions_of(run: RunSummary) -> tuple[Action, ...]:
    """What can be done with a run now."""
    if run.problem is not None:
        return ()
    return tuple(action for action in ACTIONS.values() if run.state in action.states)


def housekeeping_of(run: RunSummary) -> tuple[Action, ...]:
    """What keeps it in order."""
    hidden = "archive" if read_labels(run.run.path).archived else "unarchive"
    return tuple(action for action in HOUSEKEEPING.values() if action.name != hidden and run.state in action.states)


def present_value(action: Action, run: RunDir) -> str:
    """What the field of an action begins with."""
    labels = read_labels(run.path)
    return {"tag": " ".join(labels.tags), "note": labels.note, "rename": shown_name(run)}.get(action.name, "")


def act_on_run(action: Action, run: RunDir, typed: str = "") -> Outcome:
    """Start the command for a run, in the folder that the run was made in: paths of its spec begin there. `typed`: what
    stood in the field.
    """
    words = [action.name.removeprefix("un"), str(run.path), *action.arguments]
    if action.name in HOUSEKEEPING:
        words += ["--runs-dir", str(run.path.parent.parent)]
    if action.name == "tag":
        wanted = typed.split()
        words += [word for tag in read_labels(run.path).tags if tag not in wanted for word in ("--remove", tag)]
        words += ["--", *wanted]
    elif action.field:
        words += ["--", " ".join(typed.splitlines()) if action.name == "rename" else typed.replace("\r\n", "\n")]
    return outcome_of(words, made_in([run]))


def act_on_sweep(action: str, sweep: SweepDir) -> Outcome:
    """Delete or archive a sweep with its cells."""
    options = ("--yes",) if action == "delete" else ()
    return outcome_of((action, f"{FOLDER}/{sweep.name}", *options, "--runs-dir", str(sweep.runs_dir)), sweep.runs_dir)


def retry_cells(sweep: SweepDir) -> Outcome:
    """Start the failed and missing cells of a sweep, in the folder that its cells were made in."""
    arguments = ("sweep", "retry", str(sweep.path), "--detach", "--runs-dir", str(sweep.runs_dir))
    return outcome_of(arguments, made_in(sweep.run(entry) for entry in sweep.planned().cells))


def made_in(runs: Iterable[RunDir]) -> Path:
    """The folder that the first of these runs was made in that says so and still has it; else that of this process."""
    for run in runs:
        events, _ = readable(run.events)
        if events and events.folder and Path(events.folder).is_dir():
            return Path(events.folder)
    return Path.cwd()


def outcome_of(arguments: Sequence[str], folder: Path, *, most_lines: int = _MOST_LINES) -> Outcome:
    """Run a command to its end; it returns at once, whatever it starts. Its programs outlive the dashboard."""
    try:
        done = subprocess.run(
            module_command("orchestrator", *arguments),
            cwd=folder,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(
            False, f"orchestrator {arguments[0]} has not ended within {_MOST_SECONDS:.0f} s: see the run's log"
        )
    except OSError as error:  # the folder is gone, or another's
        return Outcome(False, f"orchestrator {arguments[0]} cannot be started in {folder}: {error.strerror}")
    lines = done.stdout.strip().splitlines()[-most_lines:]
    return Outcome(
        done.returncode == 0, "\n".join(lines) or f"orchestrator {arguments[0]} ended with {done.returncode}"
    )
