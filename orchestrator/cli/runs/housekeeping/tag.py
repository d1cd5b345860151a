"""`orchestrator tag`: tags of a run or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from orchestrator.api.housekeeping.labelling import tag, tags_of
from orchestrator.api.housekeeping.targets import Target, find_target
from orchestrator.cli.common import AsJson, RunsDir, print_json
from orchestrator.cli.runs.housekeeping.common import TargetName, described, record_of
from orchestrator.errors import UserError
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.spec.messages.suggestions import closest


def command(
    run_name: TargetName,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags to add.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="TAG", help="A tag to remove; may be repeated.")
    ] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Add tags to a run, also while it trains, or to a sweep and its cells. Without TAG, show the tags. Nothing is
    started, and MLflow gets the tags too.

    \b
    Example:
      orchestrator tag gpt-small baseline paper
      orchestrator tag 3f9a --remove baseline
    """
    target = find_target(run_name, runs_dir or default_runs_dir())
    _refuse_missing(target, tags or (), remove or ())
    labels = tag(target, tags or (), remove or ())
    if as_json:
        print_json(record_of(target, labels))
    else:
        typer.echo(f"{described(target)}: {', '.join(labels.tags) or 'no tags'}")


def _refuse_missing(target: Target, add: Sequence[str], remove: Sequence[str]) -> None:
    """Raises UserError for a tag to remove that it does not have: more likely a slip than what is wanted."""
    known = tags_of(target) | {*add} if remove else set()
    missing = [each for each in remove if each not in known]
    if missing:
        near = closest(missing[0], sorted(known))
        hint = f"did you mean {' or '.join(near)}?" if near else f"its tags are {', '.join(sorted(known)) or 'none'}"
        raise UserError(
            f"{described(target)} has no tag {', '.join(missing)}, and nothing was changed: {hint}", code="unknown_tag"
        )
