"""What a job can be exported as, and what it asks to be exported while it trains, judged before it starts. Needs no
torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.conversion.hugging_face.families.registry import family_imported_as, family_of_job, nearest_family
from orchestrator.conversion.megatron import bert_and_t5
from orchestrator.conversion.weight_mapping import Family
from orchestrator.errors import Problem, UserError
from orchestrator.run_directory.checkpoints.commit_markers import committed, read_commit
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

NOT_EXPORTABLE = "not_exportable"
"""The code of the warning that no Hugging Face model is the job's network."""
_NONE = "no Hugging Face model"


def exported_as(job: JobSpec, runs_dir: Path) -> str:
    """Which Hugging Face model a job's checkpoints can be exported as, in words; a warning says why there is none. Of
    several that its network is of, the one that the weights it begins with were imported as, where these are here.
    """
    if job.has_task:
        return _NONE
    family, against = nearest_family(job.model)
    return _NONE if against else f"{(_family_of_beginning(job, runs_dir) or family).name} (Hugging Face)"


def _family_of_beginning(job: JobSpec, runs_dir: Path) -> Family | None:
    if job.checkpoint.pretrained is None:
        return None
    try:
        path = find_weights(job.checkpoint.pretrained, runs_dir)
    except UserError:
        return None  # a warning says so
    return family_imported_as(job.model, read_commit(path) or next(reversed(committed(RunDir(path))), None))


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
