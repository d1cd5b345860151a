"""What a job can be exported as, and what it asks to be exported while it trains, judged before it starts. Needs no
torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem, UserError
from orchestrator.exchange.families.choice import family_of_job, nearest_family
from orchestrator.spec.job import JobSpec


def exported_as(job: JobSpec) -> str:
    """Which Hugging Face model a job's checkpoints can be exported as, in words."""
    if job.task is not None:
        return f"no Hugging Face model: none that is known here has the head of task {job.task.name}"
    family, against = nearest_family(job.model)
    if not against:
        return f"{family.name} (Hugging Face)"
    return f"no Hugging Face model; the nearest is {family.name}, but {'; '.join(against)}"


def export_problems(job: JobSpec) -> Iterator[Problem]:
    """That the job's checkpoints cannot be exported, and why."""
    if job.checkpoint.export is None:
        return
    try:
        family_of_job(job)
    except UserError as error:
        hint = "leave checkpoint.export out; the checkpoints themselves are written all the same"
        yield Problem(f"cannot be done: {error}", ("checkpoint.export",), hint)
