"""`orchestrator status`: one run."""

from __future__ import annotations

import time

import typer

from orchestrator.causes import cause_of
from orchestrator.cli.common import AsJson, print_json, short_count
from orchestrator.cli.running import RunName, RunsDir, ago, aligned, label
from orchestrator.launch.goodput import Goodput, goodput_of
from orchestrator.launch.runs import default_runs_dir, find_run
from orchestrator.launch.states import RunStatus, status_of
from orchestrator.launch.watch import duration
from orchestrator.planning.batch import BatchSchedule
from orchestrator.spec.loading import load_resolved


def command(run_name: RunName, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Show how one run is doing: state, cause, progress, losses, checkpoints, lost time, who holds it, where it is.

    \b
    Example:
      orchestrator status gpt-small
      orchestrator status 3f9a --json
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    status = status_of(run)
    goodput = goodput_of(run, is_live=status.is_live)
    total = BatchSchedule.of(load_resolved(run.resolved())).train_iters
    if as_json:
        print_json({**status.to_json(), "train_iters": total, "goodput": goodput.to_json()})
        return
    typer.echo(f"run {label(run)}")
    typer.echo(aligned([[f"  {name}", text] for name, text in _lines(status, goodput, total)]))


def _lines(status: RunStatus, goodput: Goodput, total: int) -> list[tuple[str, str]]:
    run = status.run
    lines = [("state", status.describe())]
    lines += [("" if number else "shown by", line) for number, line in enumerate(status.evidence)]
    lines.append(("iteration", f"{status.iteration or 0} of {total}"))
    values = status.values
    for key, name in (("train/loss", "loss"), ("validation/loss", "validation loss"), ("train/lr", "learning rate")):
        if key in values:
            lines.append((name, f"{values[key]:.6g}"))
    if "throughput/tokens_per_second" in values:
        lines.append(("speed", f"{short_count(values['throughput/tokens_per_second'])} tokens/s"))
    saved = ", ".join(str(commit.iteration) for commit in status.checkpoints[-8:])
    lines.append(("checkpoints", saved or "none"))
    if goodput.launches:
        lines.append(("launches", f"{goodput.launches}, {goodput.steps_repeated} steps done again after a resume"))
    if goodput.fraction is not None:
        productive, wall = duration(goodput.productive_seconds), duration(goodput.wall_seconds)
        lines.append(("goodput", f"{goodput.fraction:.0%}: {productive} of training in {wall}"))
    if status.holder is not None and status.holder.live:
        lines.append(("held by", status.holder.describe()))
    if status.created:
        lines.append(("created", f"{ago(time.time() - status.created)} ago"))
    lines.append(("folder", str(run.path)))
    lines.append(("logs", f"orchestrator logs {run.run_id}"))
    if status.cause is not None and (advice := cause_of(status.cause).advice):
        lines.append(("next", advice.format(run=run.run_id)))
    return lines
