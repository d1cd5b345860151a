"""A job as the flags of Megatron-LM."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

from orchestrator.errors import UserError
from orchestrator.fields.metadata import OURS, REQUIRED, NoMegatronFlag
from orchestrator.fields.values import environment_references
from orchestrator.migration.defaults import default_of
from orchestrator.migration.flag_groups import FLAG_GROUPS
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter, UnwrittenField
from orchestrator.migration.megatron_flags.ignored_flags import UNREAD
from orchestrator.migration.megatron_flags.table import ROWS, Row
from orchestrator.spec.encoder_decoder import HALVES, layers_of, stages_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.shape import declared_around, leaf_paths

_GROUPS = {
    "model": "MODEL",
    "parallelism": "MODEL_PARALLEL",
    "batch": "TRAINING",
    "data": "DATA",
    "optimizer": "TRAINING",
    "schedule": "TRAINING",
    "precision": "TRAINING",
    "checkpoint": "CHECKPOINT",
    "tracking": "EVALUATION",
    "runtime": "RUNTIME",
}
"""Group of flags of each section of the spec."""
_HALVES = (
    *("model.num_layers", "model.encoder_num_layers", "model.decoder_num_layers"),
    "parallelism.pipeline_model_parallel_split_rank",
)


@dataclass(frozen=True)
class MegatronCommand:
    """How Megatron-LM would be told of a job."""

    program: str
    nodes: int
    processes_per_node: int
    environment: tuple[tuple[str, str], ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    """(name, flags with their words)."""
    unsaid: tuple[UnwrittenField, ...]
    """Fields that no flag says."""
    otherwise: tuple[UnwrittenField, ...]
    """Fields that are said as another one: `migrate` reads them as that one."""

    @property
    def words(self) -> list[str]:
        """All flags as words, in order."""
        return [word for _, flags in self.groups for flag in flags for word in flag]


def to_megatron(job: JobSpec) -> MegatronCommand:
    """The flags of a job, and every field that they do not say. Raises UserError for a job of another program: one with
    a task, or with images."""
    if job.has_task:
        raise UserError(
            f"{job.name} has a task: Megatron-LM fine-tunes with another program, tasks/main.py --task "
            f"{job.labelled_task.name.upper()} --train-data … --valid-data … --epochs …, whose flags are not written "
            "here",
            code="task_not_in_megatron",
        )
    if job.model.has_vision:
        raise UserError(
            f"{job.name} has images (model.vision): Megatron-LM trains such a model with another program, "
            "examples/multimodal/train.py, whose flags are not written here",
            code="images_not_in_megatron",
        )
    writer = FlagWriter(_with_halves(job))
    for path in _HALVES:
        before, after = (reduce(getattr, path.split("."), each) for each in (job, writer.job))
        if before != after:
            writer.say_otherwise(path, "Megatron-LM's flags say both halves of a T5, and where its pipeline is cut")
    if job.model.family.is_encoder_decoder and job.parallelism.pipeline_model_parallel_size > 1:
        reason = (
            "Megatron-LM of core 0.16 has no pipeline for T5 and stops; the flags are those of releases that have one"
        )
        writer.unsaid_value("parallelism.pipeline_model_parallel_size", reason)
    for row in ROWS:
        _write_row(writer, row)
    for group in FLAG_GROUPS:
        group.write(writer)
    _tell_unread(writer)
    _write_launch(writer)
    covered = {row.path for row in ROWS} | {path for group in FLAG_GROUPS for path in group.paths}
    covered |= {"model.architecture", "model.vision", "launch.nodes", "launch.gpus_per_node", "launch.env"}
    for path in leaf_paths():
        if "." in path and covered.isdisjoint(accumulate(path.split("."), "{}.{}".format)):
            declared = declared_around(path, NoMegatronFlag)
            writer.leave(path, "Megatron-LM has no flag for it" if declared is None else declared.reason)
    return MegatronCommand(
        f"pretrain_{job.model.architecture}.py",
        job.launch.nodes,
        job.processes_per_node,
        tuple(sorted(_environment(job).items())),
        tuple((name, tuple(tuple(flag) for flag in flags)) for name, flags in writer.groups.items()),
        tuple(writer.unsaid),
        tuple(writer.otherwise),
    )


def _with_halves(job: JobSpec) -> JobSpec:
    """A T5 whose halves are written as the flags say them.

    --num-layers is the encoder's, and Megatron-LM cuts a pipeline only where it is told to.
    """
    if not job.model.family.is_encoder_decoder:
        return job
    layers = {half: layers_of(half, job.model) for half in HALVES}
    own = {"num_layers": layers["encoder"], "encoder_num_layers": None}
    if layers["decoder"] != layers["encoder"]:
        own["decoder_num_layers"] = layers["decoder"]
    if job.parallelism.pipeline_model_parallel_size > 1:
        job = job.changed(
            parallelism={"pipeline_model_parallel_split_rank": stages_of("encoder", job.parallelism).stop}
        )
    return job.changed(model=own)


def _write_row(writer: FlagWriter, row: Row) -> None:
    value = writer.value(row.path)
    default = default_of(row.path) if row.default is OURS else row.default
    if default is not REQUIRED and value == default:
        return
    if row.only is not None and not row.is_for(writer.value(row.only[0])):
        if value != default_of(row.path):
            writer.unsaid_value(row.path, row.purpose)
        return
    text = row.kind.write(value) if value is not None else None
    if text is not None:
        words = [text] if row.kind.values else []
        writer.add(_GROUPS[row.path.partition(".")[0]], row.flag, *words)
    elif value is not None and not _is_said_by_another(row, value):
        writer.unsaid_value(row.path, f"--{row.flag} cannot say it")


def _is_said_by_another(row: Row, value: Any) -> bool:
    return any(
        other.path == row.path and other.flag != row.flag and other.kind.write(value) is not None for other in ROWS
    )


def _write_launch(writer: FlagWriter) -> None:
    job = writer.job
    if job.launch.gpus_per_node is None:
        writer.say_otherwise("launch.gpus_per_node", f"torchrun --nproc-per-node {job.processes_per_node}")
    unsaid = sorted(set(job.launch.env) - set(_environment(job)))
    if unsaid:
        writer.unsaid_value(
            "launch.env", f"{', '.join(unsaid)}: export the value from the environment, not the text shown here"
        )


def _tell_unread(writer: FlagWriter) -> None:
    """Flags that are written and change nothing in Megatron-LM's trainer."""
    written = {flag[0].lstrip("-") for flags in writer.groups.values() for flag in flags}
    for each in UNREAD.of(writer.job.model.family):
        if each.flag in written and writer.value(each.path) != each.value:
            writer.unsaid_value(each.path, each.about(f"--{each.flag}"))


def _environment(job: JobSpec) -> dict[str, str]:
    """Variables that a script can write down."""
    return {name: value for name, value in job.launch.env.items() if not environment_references(value)}
