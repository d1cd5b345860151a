"""How long trials are trained before they are compared, and by what."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.errors import UserError
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sweep import SearchSpec, SweepSpec

_OF_EVALUATIONS = "validation/"


def steps_of(job: JobSpec) -> int:
    """The steps of a whole training."""
    return BatchSchedule.of(job).train_iters


def shares_of(search: SearchSpec, jobs: Sequence[JobSpec]) -> list[float]:
    """The shares of a whole training at which trials are compared, the last one 1. A rung in the second half of the
    training is left out: what it could still save is less than what it asks for.

    Raises UserError where the first rung is too late.
    """
    if search.strategy == "bayesian":
        return [1.0]
    first = search.first_rung
    if first >= 1:
        lengths = sorted({steps_of(job) for job in jobs})
        if len(lengths) > 1:
            raise UserError(
                f"sweep.search.first_rung: {first:g} steps are not the same share of every cell: they have "
                f"{lengths[0]:,} to {lengths[-1]:,} steps; write a share of the training, such as 10%",
                code="unequal_first_rungs",
            )
        if 2 * first > lengths[0]:
            raise UserError(
                f"sweep.search.first_rung: {first:g} steps are more than half of the training's {lengths[0]:,}: write "
                f"at most {lengths[0] // 2:,}",
                code="first_rung_too_long",
            )
        first /= lengths[0]
    shares = []
    while first <= 0.5:
        shares.append(first)
        first *= search.reduction
    return [*shares, 1.0]


def metric_of_search(spec: SweepSpec, job: JobSpec) -> str:
    """What trials are compared by: what the sweep says, or the validation loss of a job that evaluates on its way.

    Raises UserError for what is measured after the last step only, by a search that compares earlier.
    """
    assert spec.search is not None
    evaluates = job.evaluation.eval_interval is not None
    metric = spec.metric or (f"{_OF_EVALUATIONS}loss" if evaluates else "train/loss")
    if metric.startswith(_OF_EVALUATIONS) and not evaluates:
        raise UserError(
            f"the search compares cells by {metric}, which this job never measures: set evaluation.eval_interval, or "
            "sweep.metric: train/loss",
            code="metric_never_measured",
        )
    return metric


def iteration_at(job: JobSpec, share: float, metric: str) -> int:
    """The step of a rung: where evaluations are compared, that of the first one at or after its share."""
    total = steps_of(job)
    if share == 1:
        return total
    interval = (job.evaluation.eval_interval or 1) if metric.startswith(_OF_EVALUATIONS) else job.tracking.log_interval
    return min(total, interval * math.ceil(round(share * total, 6) / interval))
