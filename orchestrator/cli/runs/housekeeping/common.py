"""What the commands that keep runs in order share: names of runs and sweeps, labels in words, and asking first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from orchestrator.api.housekeeping.targets import Target
from orchestrator.cli.terminal import can_ask
from orchestrator.errors import UserError
from orchestrator.launch.run_names import shown_label
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.rundir import RunDir

TargetName = Annotated[
    str,
    typer.Argument(metavar="RUN|SWEEP", help="Run id or its beginning, a name of a run or a sweep, or a path."),
]
TargetNames = Annotated[
    list[str],
    typer.Argument(metavar="RUN|SWEEP...", help="Run ids or their beginnings, names of runs or sweeps, or paths."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def described(target: Target) -> str:
    """`run gpt/1a2b3c4d`, `sweep lr`."""
    return f"run {shown_label(target)}" if isinstance(target, RunDir) else f"sweep {target.name}"


def record_of(target: Target, labels: Labels) -> dict[str, Any]:
    """A run or a sweep and its labels, for programs."""
    which = {"run_id": target.run_id} if isinstance(target, RunDir) else {"sweep": target.name}
    shown = labels.name or target.name
    return {**which, "path": str(target.path), **asdict(labels), "name": shown, "shown_name": shown}


def ask(question: str, *, yes: bool) -> bool:
    """Whether a person wants that. Raises UserError where nobody can be asked."""
    if yes:
        return True
    if not can_ask():
        raise UserError(
            "nobody can be asked here: add --yes to do it, or --dry-run to see what it would do", code="no_terminal"
        )
    return typer.confirm(question, default=False, err=True)
