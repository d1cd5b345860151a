"""Batches and the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.errors import Problem
from orchestrator.fields.paths import COUNT, DP, GLOBAL, GPUS, MICRO, PP, VP
from orchestrator.fields.refusals import Refusal, Unavailable, around, divisors_of, multiples_of, quotient, ratio
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.ramp import samples_at
from orchestrator.spec.rules.base import replicas, stages_of

RAMPUP = "batch.rampup_batch_size"
PER_TOKEN = "batch.calculate_per_token_loss"
START, INCREMENT = f"{RAMPUP}.start_global_batch_size", f"{RAMPUP}.increment"


def global_batch(job: JobSections) -> Iterator[Problem]:
    """Global batch = micro-batch · micro-batches · DP."""
    batch, dp = job.batch, replicas(job)
    if batch.global_batch_size is None:
        return
    one_pass = batch.micro_batch_size * dp
    product = f"micro_batch_size · DP = {batch.micro_batch_size} · {dp} = {one_pass}"
    if batch.num_micro_batches is not None:
        if batch.global_batch_size != one_pass * batch.num_micro_batches:
            message = (
                f"global batch = micro-batch · micro-batches · DP: {batch.global_batch_size} ≠ "
                f"{batch.micro_batch_size} · {batch.num_micro_batches} · {dp} = {one_pass * batch.num_micro_batches}"
            )
            yield Problem(message, (GLOBAL, COUNT, MICRO, DP, GPUS), "write one of the two; the other follows")
    elif batch.global_batch_size % one_pass:
        message = (
            f"global batch = micro-batch · micro-batches · DP: {quotient(batch.global_batch_size, one_pass)} "
            f"is not whole ({product})"
        )
        offers = (
            multiples_of(one_pass, GLOBAL, batch.global_batch_size),
            divisors_of(batch.global_batch_size // dp, MICRO, batch.micro_batch_size),
        )
        yield Refusal(
            message,
            (GLOBAL, MICRO, DP, GPUS),
            numbers=(batch.global_batch_size, batch.micro_batch_size, dp),
            offers=offers,
        )


def rampup_sizes(job: JobSections) -> Iterator[Problem]:
    """The ramp climbs from its start to the full batch in whole increments."""
    rampup = job.batch.rampup_batch_size
    if rampup is None:
        return
    start, increment, full = rampup.start_global_batch_size, rampup.increment, job.global_batch_size
    paths = (RAMPUP, GLOBAL, COUNT)
    if start >= full:
        message = f"starts at the full batch or above: start_global_batch_size {start} ≥ global_batch_size {full}"
        yield Problem(message, (START, *paths), "start below it, or leave the ramp-up out")
    elif (full - start) % increment:
        message = (
            f"(global_batch_size - start_global_batch_size) / increment must be whole: "
            f"({full} - {start}) / {increment} = {ratio(full - start, increment)}"
        )
        offers = (
            divisors_of(full - start, INCREMENT, increment),
            multiples_of(increment, START, start, less=-full % increment),
        )
        yield Refusal(message, (INCREMENT, *paths), numbers=(full, start, increment), offers=offers)


def _passes(job: JobSections) -> tuple[int, str, list[str]]:
    """What batches of a ramp are made of: the samples, how they come about, and the fields in it."""
    parallelism = job.parallelism
    unit = job.batch.micro_batch_size * replicas(job)
    if parallelism.num_model_chunks > 1:
        unit *= parallelism.pipeline_model_parallel_size
        return unit, "micro_batch_size · DP · PP (virtual stages)", [RAMPUP, MICRO, DP, GPUS, PP, VP]
    return unit, "micro_batch_size · DP", [RAMPUP, MICRO, DP, GPUS]


def rampup_passes(job: JobSections) -> Iterator[Problem]:
    """Each batch of the ramp is made of whole passes of all replicas, in groups of PP with virtual stages."""
    rampup = job.batch.rampup_batch_size
    if rampup is None:
        return
    unit, equation, paths = _passes(job)
    start, increment = rampup.start_global_batch_size, rampup.increment
    micro = around(MICRO, job.batch.micro_batch_size)
    steps = divisors_of(job.global_batch_size - start, INCREMENT, increment)
    for path, size, offer in ((START, start, multiples_of(unit, START, start)), (INCREMENT, increment, steps)):
        if size % unit:
            message = f"{path.rpartition('.')[2]} / ({equation}) must be whole: {quotient(size, unit)}"
            yield Refusal(message, (path, *paths), numbers=(size, unit), offers=(offer, micro))


def training_length(job: JobSections) -> Iterator[Problem]:
    """Exactly one length."""
    schedule = job.schedule
    lengths = {
        "schedule.train_iters": schedule.train_iters,
        "schedule.train_samples": schedule.train_samples,
        "schedule.train_tokens": schedule.train_tokens,
    }
    yield from _at_most_one(lengths, "the length of training")
    if all(value is None for value in lengths.values()):
        message = "the length of training is missing"
        yield Problem(message, ("schedule",), "write one of train_iters, train_samples, train_tokens")


def at_least_one_step(job: JobSections) -> Iterator[Problem]:
    """A length that is rounded down is a step at least."""
    schedule, full = job.schedule, job.global_batch_size
    samples = job.written_samples if schedule.drop_last and job.batch.rampup_batch_size is None else None
    if samples is not None and samples < full:
        name = "train_samples" if schedule.train_samples is not None else "train_tokens"
        message = f"{samples} samples are less than a step of {full}, and drop_last rounds them down"
        yield Problem(message, (f"schedule.{name}", "schedule.drop_last", GLOBAL), "write at least one step")


def warmup_and_decay_written_once(job: JobSections) -> Iterator[Problem]:
    """At most one warm-up and one decay; steps, samples and parts of the decay convert into each other exactly."""
    schedule = job.schedule
    warmups = {
        "schedule.lr_warmup_iters": schedule.lr_warmup_iters,
        "schedule.lr_warmup_samples": schedule.lr_warmup_samples,
        "schedule.lr_warmup_fraction": schedule.lr_warmup_fraction,
    }
    decays = {
        "schedule.lr_decay_iters": schedule.lr_decay_iters,
        "schedule.lr_decay_samples": schedule.lr_decay_samples,
    }
    yield from _at_most_one(warmups, "the warm-up")
    yield from _at_most_one(decays, "the decay")


def _at_most_one(values: Mapping[str, float | None], what: str) -> Iterator[Problem]:
    written = {path: value for path, value in values.items() if value is not None}
    if len(written) > 1:
        listed = " and ".join(f"{path.rpartition('.')[2]} {value}" for path, value in written.items())
        paths = tuple(reversed(written))
        ways = " or ".join(f"--set {path}=null" for path in paths)
        yield Problem(f"{what} is set more than once: {listed}", paths, f"keep one of them, as with {ways}")


def warmup_is_part_of_decay(job: JobSections) -> Iterator[Problem]:
    """A warm-up written as a part of the decay leaves some of it."""
    fraction = job.schedule.lr_warmup_fraction
    if fraction is not None and fraction >= 1.0:
        message = f"the warm-up must be shorter than the decay: a part of {fraction:g} is all of it"
        yield Problem(message, ("schedule.lr_warmup_fraction",), "write less than 1")


def warmup_below_decay(job: JobSections) -> Iterator[Problem]:
    """The warm-up ends before the decay does."""
    name, warmup = _warmup(job)
    if warmup is None:
        return
    decay_name, decay, decay_in_samples = _decay(job)
    in_samples = name == "lr_warmup_samples"
    left, right = warmup, decay
    if in_samples != decay_in_samples:
        stages = stages_of(job)
        left, right = (warmup, samples_at(stages, decay)) if in_samples else (samples_at(stages, warmup), decay)
    if left >= right:
        converted = "" if (left, right) == (warmup, decay) else f" ({left} ≥ {right} samples)"
        message = f"the warm-up must be shorter than the decay: {name} {warmup} ≥ {decay_name} {decay}{converted}"
        yield Problem(message, (f"schedule.{name}", f"schedule.{decay_name}"), f"shorten {name}")


def _warmup(job: JobSections) -> tuple[str, int | None]:
    if job.schedule.lr_warmup_iters is not None:
        return "lr_warmup_iters", job.schedule.lr_warmup_iters
    return "lr_warmup_samples", job.schedule.lr_warmup_samples


def _decay(job: JobSections) -> tuple[str, int, bool]:
    """(field, length, whether in samples) of the decay: what is written, or else the whole training."""
    schedule = job.schedule
    if schedule.lr_decay_iters is not None:
        return "lr_decay_iters", schedule.lr_decay_iters, False
    if schedule.lr_decay_samples is not None:
        return "lr_decay_samples", schedule.lr_decay_samples, True
    if schedule.train_iters is not None:
        return "train_iters", schedule.train_iters, False
    if schedule.train_samples is not None:
        return "train_samples", schedule.train_samples, True
    if schedule.train_tokens is not None:
        return "train_tokens", -(-schedule.train_tokens // job.tokens_per_sample), True
    raise Unavailable("length of training")


def lowest_learning_rate(job: JobSections) -> Iterator[Problem]:
    """The decay goes down."""
    lr, floor = job.optimizer.lr, job.optimizer.min_lr
    if floor > lr:
        yield Problem(f"min_lr {floor:g} > lr {lr:g}", ("optimizer.min_lr", "optimizer.lr"), f"at most {lr:g}")


def loss_per_token(job: JobSections) -> Iterator[Problem]:
    """Tokens and samples of one loss cannot be weighed against each other."""
    model = job.model
    if job.batch.calculate_per_token_loss and model.family.is_masked_lm and model.bert_binary_head:
        message = "a per-token loss has one part, but BERT with its binary head has two: one counts tokens, one samples"
        yield Problem(message, (PER_TOKEN, "model.bert_binary_head", "model.architecture"), "leave it out")


def first_learning_rate(job: JobSections) -> Iterator[Problem]:
    """The warm-up goes up."""
    lr, start = job.optimizer.lr, job.schedule.lr_warmup_init
    if start > lr:
        message = f"lr_warmup_init {start:g} > lr {lr:g}"
        yield Problem(message, ("schedule.lr_warmup_init", "optimizer.lr"), f"at most {lr:g}")


RULES = (
    global_batch,
    rampup_sizes,
    rampup_passes,
    training_length,
    at_least_one_step,
    warmup_and_decay_written_once,
    warmup_is_part_of_decay,
    warmup_below_decay,
    lowest_learning_rate,
    first_learning_rate,
    loss_per_token,
)
