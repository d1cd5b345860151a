"""What a job can be exported as, and what it asks to be exported while it trains, judged before it starts. Needs no
torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.conversion.hugging_face.families.registry import family_of_job, nearest_family
from orchestrator.conversion.megatron import bert_and_t5
from orchestrator.errors import Problem, UserError
from orchestrator.spec.job import JobSpec

NOT_EXPORTABLE = "not_exportable"
"""The code of the warning that no Hugging Face model is the job's network."""
_NONE = "no Hugging Face model"


def exported_as(job: JobSpec) -> str:
    """Which Hugging Face model a job's checkpoints can be exported as, in words; a warning says why there is none."""
    if job.has_task:
        return _NONE
    family, against = nearest_family(job.model)
    return _NONE if against else f"{family.name} (Hugging Face)"


def export_problems(job: JobSpec) -> Iterator[Problem]:
    """That the job's checkpoints cannot be exported, and why."""
    if job.checkpoint.export is None:
        return
    try:
        family_of_job(job)
    except UserError as error:
        hint = "leave checkpoint.export out; the checkpoints themselves are still written"
        yield Problem(f"cannot be done: {error}", ("checkpoint.export",), hint, code=NOT_EXPORTABLE)


def export_warnings(job: JobSpec) -> Iterator[Problem]:
    """That no Hugging Face model is the job's network, and which fields stand in the way; nothing where the job is
    stopped for it.
    """
    if job.checkpoint.export is not None:
        return
    if job.has_task:
        why = f": none that is known here has the head of task {job.labelled_task.name}"
        yield Problem(f"its checkpoints are exported as {_NONE}{why}", ("task",), code=NOT_EXPORTABLE)
        return
    family, against = nearest_family(job.model)
    if not against:
        return
    fields = tuple(f"model.{each.field}" for each in against)
    why = f"; the nearest is {family.name}, but {'; '.join(each.text for each in against)}"
    ways = [f"for one write other values of {', '.join(fields)} before it is trained"]
    if bert_and_t5.has_layout(job.model.family):
        ways.append(
            "Megatron-LM's layout takes most GPTs, BERTs and T5s: orchestrator checkpoint export --to megatron-lm"
        )
    yield Problem(f"its checkpoints are exported as {_NONE}{why}", fields, "\n".join(ways), code=NOT_EXPORTABLE)
