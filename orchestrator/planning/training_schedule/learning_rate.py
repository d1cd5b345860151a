"""The learning rate of a step: linear warm-up, then constant, or one of the decays.

As megatron-core's OptimizerParamScheduler computes it, with everything counted in consumed samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.ramp import last_samples


class LearningRateSchedule(NamedTuple):
    """The schedule of a job, resolved into samples."""

    style: str
    lr: float
    min_lr: float
    warmup_init: float
    warmup_samples: float
    """Samples of linear warm-up; a fraction of the decay need not be whole."""
    decay_samples: int
    """Samples, warm-up included, after which the rate stays at `min_lr`."""
    final_style: str
    """WSD: the shape of the decay at the end."""
    final_samples: int
    """WSD: samples of the decay at the end; 0 for every other style."""

    @classmethod
    def of(cls, job: JobSpec, batch: BatchSchedule | None = None, *, decoupled: bool = False) -> LearningRateSchedule:
        """Resolve a job's schedule; iterations become samples through its batch schedule, ramp-up included.

        `decoupled`: that of the word embeddings and the output layer, which have a peak of their own where
        `optimizer.decoupled_lr` is written.
        """
        batch = batch or BatchSchedule.of(job)
        schedule, optimizer = job.schedule, job.optimizer
        if schedule.lr_decay_samples is not None:
            decay = schedule.lr_decay_samples
        elif schedule.lr_decay_iters is not None:
            decay = batch.samples_at(schedule.lr_decay_iters)
        else:
            decay = batch.written_samples
        warmup: float = 0
        if schedule.lr_warmup_samples is not None:
            warmup = schedule.lr_warmup_samples
        elif schedule.lr_warmup_iters is not None:
            warmup = batch.samples_at(schedule.lr_warmup_iters)
        elif schedule.lr_warmup_fraction is not None:
            warmup = schedule.lr_warmup_fraction * decay
        lr, min_lr = optimizer.lr, optimizer.min_lr
        if decoupled and optimizer.decoupled_lr is not None:
            lr = optimizer.decoupled_lr
            min_lr = min_lr if optimizer.decoupled_min_lr is None else optimizer.decoupled_min_lr
        return cls(
            style=schedule.lr_decay_style,
            lr=lr,
            min_lr=min_lr,
            warmup_init=schedule.lr_warmup_init,
            warmup_samples=warmup,
            decay_samples=decay,
            final_style=schedule.lr_wsd_decay_style,
            final_samples=_final_samples(job, batch, decay),
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
        return self.min_lr + self._part(consumed_samples) * (self.lr - self.min_lr)

    def _part(self, consumed_samples: int) -> float:
        """What is left, of 1, of the way down from `lr` to `min_lr`."""
        style = self.style
        if style == "WSD":
            begins = self.decay_samples - self.final_samples
            if consumed_samples <= begins:
                return 1.0
            style, ratio = self.final_style, (consumed_samples - begins) / self.final_samples
        else:
            ratio = (consumed_samples - self.warmup_samples) / (self.decay_samples - self.warmup_samples)
        match style:
            case "linear":
                return 1.0 - ratio
            case "exponential":
                return 2.0 * math.pow(0.5, ratio) - 1.0
            case "minus_sqrt":
                return 1.0 - math.sqrt(ratio)
            case _:
                return 0.5 * (math.cos(math.pi * ratio) + 1.0)


def _final_samples(job: JobSpec, batch: BatchSchedule, decay: int) -> int:
    """Samples of WSD's decay at the end. Iterations are the last ones before the decay as a whole ends."""
    schedule = job.schedule
    if schedule.lr_decay_style != "WSD":
        return 0
    if schedule.lr_wsd_decay_samples is not None:
        return schedule.lr_wsd_decay_samples
    if schedule.lr_wsd_decay_iters is None:
        return 0
    return last_samples(batch.stages, decay, schedule.lr_wsd_decay_iters)


def learning_rate(job: JobSpec, consumed_samples: int) -> float:
    """Learning rate of the step that starts after `consumed_samples`. In a loop, keep a LearningRateSchedule."""
    return LearningRateSchedule.of(job).at(consumed_samples)
