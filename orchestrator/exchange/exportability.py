"""What a job can be exported as, and what it asks to be exported while it trains, judged before it starts. Needs no
torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem, UserError
from orchestrator.exchange.families.choice import family_of_job, nearest_family
from orchestrator.spec.job import JobSpec

NOT_EXPORTABLE = "not_exportable"
"""The code of the warning that no Hugging Face model is the job's network."""


def exported_as(job: JobSpec) -> str:
    """Which Hugging Face model a job's checkpoints can be exported as, in words."""
    if job.task is not None:
        return f"no Hugging Face model: none that is known here has the head of task {job.task.name}"
    family, against = nearest_family(job.model)
    if not against:
        return f"{family.name} (Hugging Face)"
    return f"no Hugging Face model; the nearest is {family.name}, but {'; '.join(each.text for each in against)}"


def export_problems(job: JobSpec) -> Iterator[Problem]:
    """That the job's checkpoints cannot be exported, and why."""
    if job.checkpoint.export is None:
        return
    try:
        family_of_job(job)
    except UserError as error:
        hint = "leave checkpoint.export out; the checkpoints themselves are written all the same"
        yield Problem(f"cannot be done: {error}", ("checkpoint.export",), hint)


def export_warnings(job: JobSpec) -> Iterator[Problem]:
    """That no Hugging Face model is the job's network, and which fields stand in the way; nothing where the job is
    stopped for it.
    """
    if job.checkpoint.export is not None:
        return
    against = [] if job.task is not None else nearest_family(job.model)[1]
    if not against and job.task is None:
        return
    fields = tuple(f"model.{each.field}" for each in against)
    message = f"its checkpoints are exported as {exported_as(job)}"
    ways = [f"for one write other values of {', '.join(fields)} before it is trained"] if fields else []
    if job.model.architecture == "gpt":
        ways.append("Megatron-LM's layout takes most decoders: orchestrator checkpoint export --to megatron-lm")
    yield Problem(message, fields or ("task",), "\n".join(ways) or None, code=NOT_EXPORTABLE)
