"""What a trial has come to at its rung: from its run, which the scheduler and the ledger say nothing more of."""

from __future__ import annotations

import math

from orchestrator.errors import UserError
from orchestrator.launch.states.run_states import RunStatus
from orchestrator.run_directory.events.search import RungReached
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.search.halving import Trial
from orchestrator.tracking.measurements.metrics import read_metrics


def has_reached(status: RunStatus, iteration: int) -> bool:
    """Whether a run has saved its state at an iteration or later."""
    return any(commit.iteration >= iteration for commit in status.checkpoints)


def reached(run: RunDir, trial: Trial, iteration: int, metric: str) -> RungReached:
    """A trial at its rung. Raises UserError where the run has never measured the metric."""
    value = value_at(run, metric, iteration)
    if math.isfinite(value):
        return RungReached(cell=trial.cell, rung=trial.budget, iteration=iteration, value=value)
    return RungReached(cell=trial.cell, rung=trial.budget, iteration=iteration, cause=f"{metric} is {value}")


def failed(trial: Trial, iteration: int, cause: str) -> RungReached:
    """A trial that has not come to its rung."""
    return RungReached(cell=trial.cell, rung=trial.budget, iteration=iteration, cause=cause)


def value_at(run: RunDir, metric: str, iteration: int) -> float:
    """The last value of a metric up to an iteration. Raises UserError where there is none."""
    records = [record for record in read_metrics(run) if record.iteration <= iteration]
    found = [record.values[metric] for record in records if metric in record.values]
    if not found:
        known = sorted({key for record in records for key in record.values})
        raise UserError(
            f"{metric}, by which the search compares cells, was not measured by run {run.run_id} up to step "
            f"{iteration:,}: set sweep.metric to one of {', '.join(known) or 'nothing'}",
            code="metric_not_measured",
        )
    return found[-1]
