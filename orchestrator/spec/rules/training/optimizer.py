"""The optimizer, its groups of parameters, and what belongs to one style of a schedule only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Unavailable
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.ramp import BatchStage, last_samples, samples_at, whole_steps
from orchestrator.spec.rules.base import Rule, stages_of
from orchestrator.spec.sections.optimizer import NS_COEFFICIENTS, OptimizerSpec
from orchestrator.spec.sections.schedule import ScheduleSpec

OPTIMIZER, SCHEDULE = "optimizer", "schedule"
WSD_ITERS, WSD_SAMPLES = "lr_wsd_decay_iters", "lr_wsd_decay_samples"


def _only(section: str, name: str, default: Any, switch: str, values: tuple[str, ...]) -> Rule:
    """A field that has an effect only where another has one of some values."""

    def rule(job: JobSections) -> Iterator[Problem]:
        holder = getattr(job, section)
        found = getattr(holder, switch)
        if found not in values and getattr(holder, name) != default:
            paths = (f"{section}.{name}", f"{section}.{switch}")
            message = f"is for {switch}: {' or '.join(values)}, but {switch} is {found}"
            yield Problem(message, paths, "leave it out", code=f"{values[0].lower()}_only")

    return rule


_MUON = tuple(name for name in OptimizerSpec.model_fields if name.startswith("muon_"))

one_optimizer_only = tuple(
    _only(OPTIMIZER, name, OptimizerSpec.model_fields[name].default, "name", optimizers)
    for optimizers, names in {
        ("adam", "muon"): ("adam_beta1", "adam_beta2", "adam_eps", "decoupled_weight_decay"),
        ("adam",): ("exp_avg_dtype", "exp_avg_sq_dtype", "offload_fraction"),
        ("sgd",): ("sgd_momentum",),
        ("muon",): _MUON,
    }.items()
    for name in names
)
"""What only some of the optimizers have."""

wsd_only = tuple(
    _only(SCHEDULE, name, ScheduleSpec.model_fields[name].default, "lr_decay_style", ("WSD",))
    for name in ("lr_wsd_decay_style", WSD_ITERS, WSD_SAMPLES)
)
"""What only WSD has."""


def wsd_decay(job: JobSections) -> Iterator[Problem]:
    """WSD says how long its decay at the end is, once."""
    schedule = job.schedule
    if schedule.lr_decay_style != "WSD":
        return
    written = [name for name in (WSD_ITERS, WSD_SAMPLES) if getattr(schedule, name) is not None]
    if not written:
        hint = f"write {WSD_ITERS} or {WSD_SAMPLES}"
        yield Problem("WSD needs the length of its final decay", ("schedule.lr_decay_style",), hint)
    if len(written) > 1:
        message = f"the final decay is set more than once: {WSD_ITERS} and {WSD_SAMPLES}"
        yield Problem(message, tuple(f"schedule.{name}" for name in reversed(written)), "keep one of them")


def wsd_decay_length(job: JobSections) -> Iterator[Problem]:
    """WSD's warm-up and its decay at the end do not overlap."""
    schedule = job.schedule
    if schedule.lr_decay_style != "WSD":
        return
    stages = stages_of(job)

    def samples(name: str) -> int | None:
        """A length of the schedule, which the ramp-up makes of smaller steps at the beginning."""
        iterations, written = getattr(schedule, f"{name}_iters"), getattr(schedule, f"{name}_samples")
        return written if iterations is None else samples_at(stages, iterations)

    whole = samples("lr_decay") or _training_samples(job, stages)
    warmup = samples("lr_warmup") or 0
    if schedule.lr_warmup_fraction is not None:
        warmup = int(schedule.lr_warmup_fraction * whole)
    final, name = schedule.lr_wsd_decay_samples, WSD_SAMPLES
    if schedule.lr_wsd_decay_iters is not None:
        final, name = last_samples(stages, whole, schedule.lr_wsd_decay_iters), WSD_ITERS
    if final is not None and warmup + final > whole:
        message = (
            f"the warm-up and the final decay are longer than the total decay: {warmup} + {final} > {whole} samples"
        )
        yield Problem(message, (f"schedule.{name}",), f"shorten {name}")


def _training_samples(job: JobSections, stages: tuple[BatchStage, ...]) -> int:
    """Over which the decay goes where none is written."""
    schedule = job.schedule
    if schedule.train_iters is not None:
        return samples_at(stages, schedule.train_iters)
    length = job.written_samples
    if length is None:
        raise Unavailable("length of training")
    return length if schedule.drop_last else samples_at(stages, whole_steps(stages, length))


def increasing_weight_decay(job: JobSections) -> Iterator[Problem]:
    """A weight decay that increases goes from somewhere to somewhere higher; a constant one is `weight_decay`."""
    optimizer = job.optimizer
    style, ends = optimizer.weight_decay_incr_style, ("start_weight_decay", "end_weight_decay")
    style_path = "optimizer.weight_decay_incr_style"
    for name in ends:
        is_written = getattr(optimizer, name) is not None
        if style == "constant" and is_written:
            hint = "write linear or cosine there, or leave it out: a constant decay is weight_decay"
            yield Problem(
                "is for an increasing weight decay, but it is constant", (f"optimizer.{name}", style_path), hint
            )
        elif style != "constant" and not is_written:
            yield Problem(f"{style} needs optimizer.{name}", (style_path,), f"write {name}")
    start, end = optimizer.start_weight_decay, optimizer.end_weight_decay
    if style != "constant" and start is not None and end is not None and start > end:
        message = f"start_weight_decay {start:g} > end_weight_decay {end:g}"
        yield Problem(message, tuple(f"optimizer.{name}" for name in ends), f"at most {end:g}")


def decoupled_learning_rate(job: JobSections) -> Iterator[Problem]:
    """The rate of the embeddings and the output layer goes down as the others do."""
    optimizer = job.optimizer
    lr, floor = optimizer.decoupled_lr, optimizer.decoupled_min_lr
    if lr is None:
        if floor is not None:
            paths = ("optimizer.decoupled_min_lr", "optimizer.decoupled_lr")
            yield Problem("needs optimizer.decoupled_lr", paths, "write decoupled_lr, or leave it out")
        return
    name, lowest = ("min_lr", optimizer.min_lr) if floor is None else ("decoupled_min_lr", floor)
    if lowest > lr:
        message = f"{name} {lowest:g} > decoupled_lr {lr:g}"
        paths = ("optimizer.decoupled_lr", f"optimizer.{name}")
        yield Problem(message, paths, f"write a decoupled_min_lr of at most {lr:g}")


def weight_decay_of_qk_norms(job: JobSections) -> Iterator[Problem]:
    """Norms that are decayed are there."""
    if job.optimizer.apply_wd_to_qk_layernorm and not job.model.qk_layernorm:
        paths = ("optimizer.apply_wd_to_qk_layernorm", "model.qk_layernorm")
        yield Problem("there are no norms of queries and keys: model.qk_layernorm is false", paths, "leave it out")


def whole_cycles_of_coefficients(job: JobSections) -> Iterator[Problem]:
    """Coefficients that differ from step to step are all used: the last ones make what the first ones need."""
    optimizer = job.optimizer
    if not optimizer.kind.orthogonalizes:
        return
    steps, cycle = optimizer.muon_num_ns_steps, len(NS_COEFFICIENTS[optimizer.muon_coefficient_type])
    if steps % cycle:
        paths = ("optimizer.muon_num_ns_steps", "optimizer.muon_coefficient_type")
        message = f"{steps} steps do not use all {cycle} coefficients of {optimizer.muon_coefficient_type}"
        yield Problem(message, paths, f"write a multiple of {cycle}, or muon_coefficient_type: simple")


def no_adapters_with_muon(job: JobSections) -> Iterator[Problem]:
    """Of an adapter two factors are trained, whose product is the update: neither is a matrix to orthogonalize."""
    if job.optimizer.kind.orthogonalizes and job.model.has_adapters:
        yield Problem("adapters (model.lora) are not trained with muon", ("optimizer.name", "model.lora"), "write adam")


def offloaded_state_is_shared_out(job: JobSections) -> Iterator[Problem]:
    """Only of a distributed optimizer the state, and not the weights in fp32 as well, can be elsewhere."""
    shared = "parallelism.use_distributed_optimizer"
    if job.optimizer.offload_fraction > 0 and not job.parallelism.use_distributed_optimizer:
        message = f"only a distributed optimizer has its state in host memory, but {shared} is false"
        paths = ("optimizer.offload_fraction", shared)
        yield Problem(message, paths, f"leave it out, or write {shared}: true", code="offload_without_sharding")


RULES = (
    *one_optimizer_only,
    *wsd_only,
    wsd_decay,
    wsd_decay_length,
    increasing_weight_decay,
    decoupled_learning_rate,
    weight_decay_of_qk_norms,
    whole_cycles_of_coefficients,
    no_adapters_with_muon,
    offloaded_state_is_shared_out,
)
