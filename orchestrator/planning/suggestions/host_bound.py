"""What a job whose GPUs wait for their host could do in the time that they wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.planning.forecast import Forecast
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.neighbours import (
    fewer_gpus,
    larger_batches,
    larger_micro_batches,
    smaller_context_parallelism,
)
from orchestrator.planning.suggestions.trial import Trial, trials

_DIFFERENCE = 0.05
"""Share of a step below which two take as long as each other, and above which one takes less time."""


def ways_to_fill(plan: Plan, forecast: Forecast) -> list[str]:
    """What the same host starts in the same time, or less time for the same: each a sentence with its options."""
    changes = [*larger_micro_batches(plan.job), *smaller_context_parallelism(plan.job)]
    fewer = trials(plan, forecast, changes)
    step = forecast.time.step_seconds
    if fewer:
        fastest = min(fewer, key=lambda trial: trial.time.step_seconds)
        saved = 1 - fastest.time.step_seconds / step
        if saved > _DIFFERENCE:
            return [f"a step takes {saved:.0%} less with {fastest.options}"]
    found = []
    if (larger := _furthest(plan, forecast, larger_batches(plan.job, of_larger_micro_batches=True))) is not None:
        growth = larger.job.global_batch_size // plan.job.global_batch_size
        found.append(f"a step of {growth} times the samples takes as long with {larger.options}")
    if (smaller := _furthest(plan, forecast, fewer_gpus(plan.job))) is not None:
        size = smaller.job.world_size
        found.append(f"this one takes as long on {size} GPU{'s' if size > 1 else ''} with {smaller.options}")
    return found


def _furthest(plan: Plan, forecast: Forecast, changes: Iterable[Mapping[str, Any]]) -> Trial | None:
    """The last that takes no longer than the job as it is."""
    most = (1 + _DIFFERENCE) * forecast.time.step_seconds
    as_long = [each for each in trials(plan, forecast, changes) if each.time.step_seconds <= most]
    return as_long[-1] if as_long else None
