"""The global batch as a function of consumed samples, and the length of training in steps, samples and tokens."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from orchestrator.spec.batch import RampupSpec
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class BatchStage:
    """A stretch of steps with one global batch size. The last one is open-ended."""

    global_batch_size: int
    num_micro_batches: int
    first_iteration: int
    """Steps done before this stage."""
    first_sample: int
    """Samples consumed before this stage."""


@dataclass(frozen=True)
class BatchSchedule:
    """Batch size and length of a training. Every count is of whole steps.

    Ramp-up follows Megatron: the batch grows by `increment` each `samples / ((full - start) / increment)` samples, and
    is rounded down to whole passes of all replicas (micro-batch · DP), to one pass at least.
    """

    micro_batch_size: int
    data_parallel_size: int
    seq_length: int
    thresholds: tuple[int, ...]
    """Consumed samples from which each size of `sizes` holds; the first is 0."""
    sizes: tuple[int, ...]
    """Global batch sizes, growing; the last one is the full size."""
    stages: tuple[BatchStage, ...]
    train_iters: int
    train_samples: int

    @classmethod
    def of(cls, job: JobSpec) -> BatchSchedule:
        """The schedule of a job. A length in samples or tokens is rounded up to whole steps."""
        pass_size = job.batch.micro_batch_size * job.data_parallel_size
        thresholds, sizes = _sizes(job.global_batch_size, pass_size, job.batch.rampup_batch_size)
        stages = _stages(thresholds, sizes, pass_size)
        iterations = _train_iters(job, stages)
        return cls(
            micro_batch_size=job.batch.micro_batch_size,
            data_parallel_size=job.data_parallel_size,
            seq_length=job.model.sample_length,
            thresholds=thresholds,
            sizes=sizes,
            stages=stages,
            train_iters=iterations,
            train_samples=_samples_at(stages, iterations),
        )

    @property
    def train_tokens(self) -> int:
        """Tokens of the whole training."""
        return self.train_samples * self.seq_length

    def global_batch_size(self, consumed_samples: int) -> int:
        """Sequences of the step that starts after `consumed_samples`."""
        return self.sizes[bisect_right(self.thresholds, consumed_samples) - 1]

    def num_micro_batches(self, consumed_samples: int) -> int:
        """Micro-batches per replica of the step that starts after `consumed_samples`."""
        return self.global_batch_size(consumed_samples) // (self.micro_batch_size * self.data_parallel_size)

    def at_full_size(self) -> BatchSchedule:
        """The same without ramp-up: for evaluation, whose batches are always of full size."""
        return replace(self, thresholds=(0,), sizes=self.sizes[-1:])

    def iteration_of(self, consumed_samples: int) -> int:
        """Whole steps done after `consumed_samples`."""
        return _iteration_of(self.stages, consumed_samples)

    def samples_at(self, iteration: int) -> int:
        """Samples consumed after `iteration` steps."""
        return _samples_at(self.stages, iteration)


def _sizes(full: int, pass_size: int, rampup: RampupSpec | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(thresholds, sizes): the full batch alone, or the steps up to it."""
    if rampup is None or rampup.start_global_batch_size >= full:
        return (0,), (full,)
    increments = -(-(full - rampup.start_global_batch_size) // rampup.increment)
    thresholds, sizes = [0], [_whole_passes(rampup.start_global_batch_size, pass_size)]
    for number in range(1, increments + 1):
        size = _whole_passes(min(rampup.start_global_batch_size + number * rampup.increment, full), pass_size)
        if size > sizes[-1]:
            thresholds.append(_threshold(number, increments, rampup.samples))
            sizes.append(size)
    return tuple(thresholds), tuple(sizes)


def _whole_passes(size: int, pass_size: int) -> int:
    return max(size // pass_size, 1) * pass_size


def _threshold(number: int, increments: int, samples: int) -> int:
    """The first consumed_samples at which `number` increments are in force.

    Megatron divides in floating point, `int(consumed / (samples / increments))`, which can lag the exact quotient by
    one sample; following it, the same step has the same batch here and there.
    """
    consumed = -(-number * samples // increments)
    while consumed <= samples and int(consumed / (samples / increments)) < number:
        consumed += 1
    return consumed


def _stages(thresholds: tuple[int, ...], sizes: tuple[int, ...], pass_size: int) -> tuple[BatchStage, ...]:
    stages = []
    iteration = sample = 0
    for index, size in enumerate(sizes):
        following = thresholds[index + 1] if index + 1 < len(sizes) else None
        if following is not None and sample >= following:
            continue  # one big step jumped over this size
        stages.append(BatchStage(size, size // pass_size, iteration, sample))
        if following is not None:
            steps = -(-(following - sample) // size)
            iteration += steps
            sample += steps * size
    return tuple(stages)


def _iteration_of(stages: tuple[BatchStage, ...], samples: int) -> int:
    stage = stages[bisect_right(stages, samples, key=lambda stage: stage.first_sample) - 1]
    return stage.first_iteration + (samples - stage.first_sample) // stage.global_batch_size


def _samples_at(stages: tuple[BatchStage, ...], iteration: int) -> int:
    stage = stages[bisect_right(stages, iteration, key=lambda stage: stage.first_iteration) - 1]
    return stage.first_sample + (iteration - stage.first_iteration) * stage.global_batch_size


def _train_iters(job: JobSpec, stages: tuple[BatchStage, ...]) -> int:
    schedule = job.schedule
    if schedule.train_iters is not None:
        return schedule.train_iters
    if schedule.train_samples is not None:
        samples = schedule.train_samples
    else:
        assert schedule.train_tokens is not None, "the spec has exactly one length"
        samples = -(-schedule.train_tokens // job.model.sample_length)
    iterations = _iteration_of(stages, samples)
    return iterations if _samples_at(stages, iterations) >= samples else iterations + 1
