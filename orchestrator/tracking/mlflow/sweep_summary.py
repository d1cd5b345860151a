"""What a sweep's MLflow run says of all its cells: axes, metric, how many are in which state, and the best ones."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.run_directory.events.ledger import CellsPlanned, read_ledger
from orchestrator.tracking.mlflow import limits
from orchestrator.tracking.mlflow.tags import NOTE_TAG

_LEDGER = "ledger.jsonl"
_ROWS = 20
_STATES = ("running", "finished", "failed", "killed", "waiting")
DEFAULT_METRICS = ("validation/loss", "train/loss")
"""What cells are compared by where the sweep does not say: the first that there is."""


@dataclass(frozen=True)
class Child:
    """A cell as the store has it. `state` in our words and `status` in MLflow's; `ended` in milliseconds since the
    epoch; `metrics`: the last value of each; `run`: its run id.
    """

    cell: str
    state: str
    status: str
    ended: int | None
    metrics: Mapping[str, float]
    run: str = ""


def newest_plan(home: Path) -> CellsPlanned | None:
    """The newest plan of a sweep's ledger that was not withdrawn; None where there is none."""
    plans = read_ledger(home / _LEDGER).plans
    return plans[-1] if plans else None


def created(home: Path) -> float | None:
    """When the sweep was begun, in seconds since the epoch."""
    return next((event.time for event in read_ledger(home / _LEDGER) if event.time is not None), None)


def status_of(children: Sequence[Child]) -> tuple[str, int | None]:
    """MLflow's status of the sweep and, when no cell runs, its end in milliseconds since the epoch: RUNNING while one
    does, then FINISHED where one has, else FAILED or KILLED.
    """
    found = {child.status for child in children}
    status = next((each for each in ("RUNNING", "FINISHED", "FAILED", "KILLED") if each in found), "RUNNING")
    ends = [child.ended for child in children if child.ended is not None]
    return status, None if status == "RUNNING" else max(ends, default=None)


def summary_tags(home: Path, plan: CellsPlanned | None, children: Sequence[Child]) -> dict[str, str]:
    """Tags of the sweep's run, its description among them. Cells that have left the sweep are not in them."""
    cells = plan.rows if plan else []
    planned = {str(cell.get("name")) for cell in cells}
    runs = {str(cell.get("run")).rpartition("/")[2] for cell in cells}
    if cells:  # else its ledger is lost, and all count
        # Another cluster makes other runs of cells of the same name.
        children = [child for child in children if child.cell in planned and (not child.run or child.run in runs)]
    counts = Counter(child.state for child in children)
    waiting = len(planned - {child.cell for child in children})
    states = dict.fromkeys(_STATES, 0) | counts | {"waiting": waiting}
    metric = (plan.metric if plan else None) or default_metric(children)
    goal = (plan.goal if plan else None) or "min"
    best = ranked(children, metric, goal)
    axes = axes_of(cell.get("values") or {} for cell in cells)
    tags = {
        "metric": metric,
        "goal": goal,
        "cells": str(len(planned)),
        "pruned": str(len((plan.pruned if plan else None) or [])),
    }
    tags |= {f"states.{name}": str(count) for name, count in states.items()}
    tags |= {f"axes.{name}": ", ".join(values) for name, values in axes.items()}
    if best:
        tags |= {"best_cell": best[0][0].cell, "best_value": f"{best[0][1]:.6g}"}
    named = {limits.entity_name(f"orchestrator.sweep.{name}"): value for name, value in tags.items()}
    return named | {NOTE_TAG: _note(home, states, metric, goal, axes, best)}


def default_metric(children: Iterable[Child]) -> str:
    """What cells are compared by where the sweep does not say: the validation loss, else the training loss."""
    evaluated = any(DEFAULT_METRICS[0] in child.metrics for child in children)
    return DEFAULT_METRICS[0 if evaluated else 1]


def ranked(children: Iterable[Child], metric: str, goal: str) -> list[tuple[Child, float]]:
    """The cells that have the metric, with its value, the best first."""
    name = limits.entity_name(metric)
    found = [(child, child.metrics[name]) for child in children if math.isfinite(child.metrics.get(name, math.nan))]
    return sorted(found, key=lambda pair: (-pair[1] if goal == "max" else pair[1], pair[0].cell))


def axes_of(cells: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Each field that the cells set, with its values in the order of the sweep."""
    axes: dict[str, dict[str, None]] = {}
    for values in cells:
        for name, value in values.items():
            axes.setdefault(str(name), {})[str(value)] = None
    return {name: list(values) for name, values in axes.items()}


def _note(
    home: Path,
    states: Mapping[str, int],
    metric: str,
    goal: str,
    axes: Mapping[str, Sequence[str]],
    best: Sequence[tuple[Child, float]],
) -> str:
    lines = [
        f"**Sweep {home.name}**: {', '.join(f'{count} {name}' for name, count in states.items() if count)}",
        "",
    ]
    lines += [
        f"- `{name}`: {', '.join(values[:_ROWS])}{', …' if len(values) > _ROWS else ''}"
        for name, values in axes.items()
    ]
    lines += ["", f"    orchestrator sweep status {home.name} --runs-dir {shlex.quote(str(home.parent.parent))}", ""]
    if best:
        lines += [f"| cell | {metric} ({goal}) | state |", "|---|---|---|"]
        lines += [f"| `{child.cell}` | {value:.6g} | {child.state} |" for child, value in best[:_ROWS]]
    return "\n".join(lines)
