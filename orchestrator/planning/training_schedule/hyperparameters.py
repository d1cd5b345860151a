"""The optimizer's hyperparameters at a step: learning rates and weight decay, as functions of consumed samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.learning_rate import LearningRateSchedule
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class Hyperparameters:
    """Of one step."""

    lr: float
    decoupled_lr: float
    """Of the word embeddings and the output layer; `lr` unless `optimizer.decoupled_lr` is written."""
    weight_decay: float


@dataclass(frozen=True)
class WeightDecaySchedule:
    """Weight decay over the training, as megatron-core's OptimizerParamScheduler computes it."""

    style: str
    start: float
    end: float
    samples: int
    """Over which it increases: the whole training."""

    @classmethod
    def of(cls, job: JobSpec, batch: BatchSchedule) -> WeightDecaySchedule:
        start, end = job.optimizer.weight_decays
        return cls(job.optimizer.weight_decay_incr_style, start, end, batch.written_samples)

    def at(self, consumed_samples: int) -> float:
        """Weight decay of the step that starts after `consumed_samples`."""
        if self.style == "constant" or consumed_samples > self.samples:
            return self.end
        ratio = consumed_samples / self.samples
        part = ratio if self.style == "linear" else 0.5 * (math.cos(math.pi * (1 - ratio)) + 1.0)
        return self.start + part * (self.end - self.start)


@dataclass(frozen=True)
class HyperparameterSchedule:
    """Everything about the optimizer that changes from step to step."""

    rates: LearningRateSchedule
    decoupled_rates: LearningRateSchedule
    weight_decay: WeightDecaySchedule

    @classmethod
    def of(cls, job: JobSpec, batch: BatchSchedule | None = None) -> HyperparameterSchedule:
        """That of a job; `batch` saves computing the batch schedule again."""
        batch = batch or BatchSchedule.of(job)
        return cls(
            LearningRateSchedule.of(job, batch),
            LearningRateSchedule.of(job, batch, decoupled=True),
            WeightDecaySchedule.of(job, batch),
        )

    def at(self, consumed_samples: int) -> Hyperparameters:
        """Those of the step that starts after `consumed_samples`."""
        return Hyperparameters(
            self.rates.at(consumed_samples),
            self.decoupled_rates.at(consumed_samples),
            self.weight_decay.at(consumed_samples),
        )
