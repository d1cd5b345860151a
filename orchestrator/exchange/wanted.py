"""What a job asks to be exported while it trains, judged before it starts. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem, UserError
from orchestrator.exchange.families.choice import family_of_job
from orchestrator.spec.job import JobSpec


def export_problems(job: JobSpec) -> Iterator[Problem]:
    """That the job's checkpoints cannot be exported, and why."""
    if job.checkpoint.export is None:
        return
    try:
        family_of_job(job)
    except UserError as error:
        hint = "leave checkpoint.export out; the checkpoints themselves are written all the same"
        yield Problem(f"cannot be done: {error}", ("checkpoint.export",), hint)
