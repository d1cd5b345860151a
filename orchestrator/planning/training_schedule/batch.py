"""The global batch as a function of consumed samples, and the length of training in steps, samples and tokens."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.ramp import (
    BatchStage,
    batch_sizes,
    batch_stages,
    iteration_of,
    samples_at,
    steps_to,
    whole_steps_to,
)


class Progress(NamedTuple):
    """How far a training has come, over all its specs: steps done, sequences and tokens consumed."""

    iteration: int = 0
    samples: int = 0
    tokens: int = 0


class BatchSchedule(NamedTuple):
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
    """The iteration at which the training ends."""
    train_samples: int
    """Samples consumed at that iteration."""
    written_samples: int
    """The length over which the rates change, and that the order of the data is made for: `train_samples`, or what is
    written where that is rounded down."""

    @classmethod
    def of(cls, job: JobSpec, done: Progress | None = None) -> BatchSchedule:
        """The schedule of a job, of which `done` is done already, perhaps with other batches and sequence lengths.

        A length in samples or tokens is rounded to whole steps, up unless `schedule.drop_last`; one in steps is as many
        samples as these steps have from the start with this job's batches. Where more than that is done, the training
        ends where it stands.
        """
        pass_size = job.batch.micro_batch_size * job.data_parallel_size
        thresholds, sizes = batch_sizes(job.global_batch_size, pass_size, job.batch.rampup_batch_size)
        stages = batch_stages(thresholds, sizes, pass_size)
        done = done or Progress()
        target = _target(job, stages, done)
        drops = job.schedule.drop_last and job.schedule.train_iters is None
        if drops:
            rampup = job.batch.rampup_batch_size
            steps, samples = whole_steps_to(thresholds, sizes, done.samples, target, rampup)
        else:
            steps, samples = steps_to(thresholds, sizes, done.samples, target)
        return cls(
            micro_batch_size=job.batch.micro_batch_size,
            data_parallel_size=job.data_parallel_size,
            seq_length=job.tokens_per_sample,
            thresholds=thresholds,
            sizes=sizes,
            stages=stages,
            train_iters=done.iteration + steps,
            train_samples=samples,
            written_samples=target if drops else samples,
        )

    @property
    def drawn_samples(self) -> int:
        """Samples that the data is to have, for the whole training."""
        return max(self.train_samples, self.written_samples)

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
        return self._replace(thresholds=(0,), sizes=self.sizes[-1:])

    def iteration_of(self, consumed_samples: int) -> int:
        """Whole steps done after `consumed_samples`."""
        return iteration_of(self.stages, consumed_samples)

    def samples_after(self, consumed_samples: int, steps: int) -> int:
        """Samples consumed after `steps` more steps."""
        for index, size in enumerate(self.sizes):
            more = steps
            if index + 1 < len(self.sizes):
                more = min(steps, max(0, -(-(self.thresholds[index + 1] - consumed_samples) // size)))
            consumed_samples, steps = consumed_samples + more * size, steps - more
        return consumed_samples

    def samples_at(self, iteration: int) -> int:
        """Samples consumed after `iteration` steps."""
        return samples_at(self.stages, iteration)


def _target(job: JobSpec, stages: tuple[BatchStage, ...], done: Progress) -> int:
    """Samples after which the training ends, before they are rounded up to whole steps."""
    schedule = job.schedule
    if schedule.train_iters is not None:
        return samples_at(stages, schedule.train_iters)
    if schedule.train_samples is not None:
        return schedule.train_samples
    assert schedule.train_tokens is not None, "the spec has exactly one length"
    return done.samples - (done.tokens - schedule.train_tokens) // job.tokens_per_sample
