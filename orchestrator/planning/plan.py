"""Everything that can be told about a job before it is started, in one object that can be printed or stored."""

from __future__ import annotations

from typing import Any, NamedTuple

from orchestrator.data.source_survey import Source, source_problems, survey_job
from orchestrator.data.tasks.checks import task_problems
from orchestrator.errors import Problem
from orchestrator.planning.blend import blend_report, split_shares
from orchestrator.planning.blend.report import BlendReport, SourcePlan
from orchestrator.planning.flops import formula, full_flops, model_flops
from orchestrator.planning.layout.topology import Topology, topology
from orchestrator.planning.parameters import Parameters, parameters
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.learning_rate import LearningRateSchedule
from orchestrator.planning.vocabulary import Vocabulary, vocabulary
from orchestrator.spec.job import JobSpec

_LONG = 8192
"""Tokens of a sequence up to which published steps are planned within a tenth in the mean."""


class Plan(NamedTuple):
    """What a job will do."""

    job: JobSpec
    vocabulary: Vocabulary
    parameters: Parameters
    topology: Topology
    batch: BatchSchedule
    learning_rate: LearningRateSchedule
    step_flops: float
    """Model FLOPs of one step at full batch size, over all ranks."""
    total_flops: float
    """Model FLOPs of the whole training."""
    data_sets: tuple[Source, ...]
    """Every data set of the job, those for validation and test too: there, made first, or missing."""
    blend: BlendReport
    warnings: tuple[Problem, ...]
    """What is hardly meant so, or could not be looked at: missing data or tokenizer, sources that give nothing."""
    notes: tuple[str, ...]
    """What is worth knowing and may well be meant so: many epochs, test data that is not evaluated."""

    @property
    def sources(self) -> tuple[SourcePlan, ...]:
        """The sources of the training blend."""
        return self.blend.train.sources

    @property
    def data_present(self) -> bool:
        """Whether all data of the training blend is on this machine and whole."""
        return all(source.note is None for source in self.sources)

    @property
    def full_step_flops(self) -> float | None:
        """`step_flops` with all of attention's scores, where the job asks for Megatron-LM's count; else None."""
        job = self.job
        return full_flops(job, job.global_batch_size * job.tokens_per_sample, self.vocabulary.padded_size)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `plan --json`."""
        job = self.job
        flops = {"per_step": self.step_flops, "total": self.total_flops, "formula": formula(job)}
        if self.full_step_flops is not None:
            flops["full_per_step"] = self.full_step_flops
        return {
            "name": job.name,
            "config_hash": job.config_hash,
            "vocabulary": self.vocabulary._asdict(),
            "parameters": self.parameters.to_dict(),
            "topology": self.topology.to_dict(),
            "batch": {
                "micro_batch_size": job.batch.micro_batch_size,
                "global_batch_size": job.global_batch_size,
                "num_micro_batches": job.num_micro_batches,
                "data_parallel_size": job.data_parallel_size,
                "rampup": [stage._asdict() for stage in self.batch.stages] if len(self.batch.stages) > 1 else [],
            },
            "steps": self.batch.train_iters,
            "samples": self.batch.train_samples,
            "tokens": self.batch.train_tokens,
            "learning_rate": self.learning_rate._asdict(),
            "flops": flops,
            "blend": [source.to_dict() for source in self.sources],
            "blend_report": self.blend.to_dict(),
            "notes": list(self.notes),
        }


def make_plan(job: JobSpec) -> Plan:
    """Plan a job.

    Raises SpecError when its tokenizer cannot be read or does not fit `model.vocab_size`. Data that is not on this
    machine is a note, not an error.
    """
    words = vocabulary(job)
    batch = BatchSchedule.of(job)
    layout = topology(job)
    data_sets = survey_job(job)
    blend = blend_report(job, batch, data_sets)
    return Plan(
        job=job,
        vocabulary=words,
        parameters=parameters(job, words.padded_size),
        topology=layout,
        batch=batch,
        learning_rate=LearningRateSchedule.of(job, batch),
        step_flops=model_flops(job, job.global_batch_size * job.tokens_per_sample, words.padded_size),
        total_flops=model_flops(job, batch.train_tokens, words.padded_size),
        data_sets=tuple(data_sets),
        blend=blend,
        warnings=tuple(_data_warnings(job, words, data_sets, blend)),
        notes=(*_data_notes(job, data_sets, blend), *_time_notes(job)),
    )


def _time_notes(job: JobSpec) -> list[str]:
    """What others published took longer than planned (docs/benchmarks/accuracy.md)."""
    unsure = []
    if job.model.has_experts:
        unsure.append("a step with experts")
    if job.model.seq_length > _LONG:
        unsure.append(f"a step with sequences of more than {_LONG:,} tokens")
    return [f"{each} may take a third longer than is planned: `orchestrator bench` measures it" for each in unsure]


def _data_warnings(job: JobSpec, words: Vocabulary, data_sets: list[Source], blend: BlendReport) -> list[Problem]:
    warnings = []
    if words.tokenizer_size is None and not job.data.random_tokens:
        text = f"the tokenizer {job.data.tokenizer.path} is not on this machine; model.vocab_size is believed"
        warnings.append(Problem(text, ("data.tokenizer.path", "data.tokenizer"), code="data"))
    warnings += source_problems(data_sets)
    if not job.data.random_tokens:
        warnings += task_problems(job.task)
    return [*warnings, *(Problem(text, ("data.blend",), code="data") for text in blend.warnings)]


def _data_notes(job: JobSpec, data_sets: list[Source], blend: BlendReport) -> list[str]:
    notes = [*(each.note for each in data_sets if each.is_to_be_made and each.note is not None), *blend.notes]
    if job.data.test is not None:
        notes.append("test data (data.test) is not evaluated during training")
    elif job.data.blend is not None and (held_back := split_shares(job.data)[2]) > 0:
        notes.append(f"test data ({held_back:.2%} of each source, by data.split) is not evaluated during training")
    return notes
