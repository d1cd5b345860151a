"""The learning rate of a step: linear warm-up, then constant, linear, cosine or inverse-square-root decay.

As megatron-core's OptimizerParamScheduler computes it, with everything counted in consumed samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.planning.batch import BatchSchedule
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class LearningRateSchedule:
    """The schedule of a job, resolved into samples."""

    style: str
    lr: float
    min_lr: float
    warmup_init: float
    warmup_samples: float
    """Samples of linear warm-up; a fraction of the decay need not be whole."""
    decay_samples: int
    """Samples, warm-up included, after which the rate stays at `min_lr`."""

    @classmethod
    def of(cls, job: JobSpec, batch: BatchSchedule | None = None) -> LearningRateSchedule:
        """Resolve a job's schedule; iterations become samples through its batch schedule, ramp-up included."""
        batch = batch or BatchSchedule.of(job)
        schedule = job.schedule
        if schedule.lr_decay_samples is not None:
            decay = schedule.lr_decay_samples
        elif schedule.lr_decay_iters is not None:
            decay = batch.samples_at(schedule.lr_decay_iters)
        else:
            decay = batch.train_samples
        warmup: float = 0
        if schedule.lr_warmup_samples is not None:
            warmup = schedule.lr_warmup_samples
        elif schedule.lr_warmup_iters is not None:
            warmup = batch.samples_at(schedule.lr_warmup_iters)
        elif schedule.lr_warmup_fraction is not None:
            warmup = schedule.lr_warmup_fraction * decay
        return cls(
            style=schedule.lr_decay_style,
            lr=job.optimizer.lr,
            min_lr=job.optimizer.min_lr,
            warmup_init=schedule.lr_warmup_init,
            warmup_samples=warmup,
            decay_samples=decay,
        )

    def at(self, consumed_samples: int) -> float:
        """Learning rate of the step that starts after `consumed_samples`."""
        if self.warmup_samples > 0 and consumed_samples <= self.warmup_samples:
            return self.warmup_init + (self.lr - self.warmup_init) * consumed_samples / self.warmup_samples
        if self.style == "constant":
            return self.lr
        if consumed_samples > self.decay_samples:
            return self.min_lr
        if self.style == "inverse-square-root":
            return max(
                self.min_lr, self.lr * math.sqrt(max(self.warmup_samples, 1)) / math.sqrt(max(consumed_samples, 1))
            )
        ratio = (consumed_samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        part = 1.0 - ratio if self.style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1.0)
        return self.min_lr + part * (self.lr - self.min_lr)


def learning_rate(job: JobSpec, consumed_samples: int) -> float:
    """Learning rate of the step that starts after `consumed_samples`. In a loop, keep a LearningRateSchedule."""
    return LearningRateSchedule.of(job).at(consumed_samples)
