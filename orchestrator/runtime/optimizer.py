"""The optimizer of one rank, and the step that skips what is not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.adam import GroupStepAdam
from orchestrator.runtime.model import DTYPES
from orchestrator.spec.job import JobSpec
from orchestrator.spec.optimizer import OptimizerSpec


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer step did. `grad_norm` is the global L2 norm before clipping."""

    applied: bool
    grad_norm: float
    reason: str | None = None
    """Why the update was skipped; None when it was applied or when only the loss scale had to shrink."""


def build_optimizer(job: JobSpec, chunks: list[Any]) -> Any:
    """megatron-core's optimizer over our Adam, for chunks wrapped in data parallelism."""
    precision, optimizer, parallelism = job.precision, job.optimizer, job.parallelism
    built = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=optimizer.lr,
            min_lr=optimizer.min_lr,
            weight_decay=optimizer.weight_decay,
            adam_beta1=optimizer.adam_beta1,
            adam_beta2=optimizer.adam_beta2,
            adam_eps=optimizer.adam_eps,
            clip_grad=optimizer.clip_grad,
            bf16=precision.dtype == "bf16",
            fp16=precision.dtype == "fp16",
            params_dtype=DTYPES[precision.dtype],
            loss_scale=precision.loss_scale,
            initial_loss_scale=precision.initial_loss_scale,
            min_loss_scale=precision.min_loss_scale,
            loss_scale_window=precision.loss_scale_window,
            hysteresis=precision.hysteresis,
            use_distributed_optimizer=parallelism.use_distributed_optimizer,
            overlap_param_gather=chunks[0].ddp_config.overlap_param_gather,
        ),
        chunks,
    )
    for part in getattr(built, "chained_optimizers", [built]):
        if isinstance(part.optimizer, GroupStepAdam):
            part.optimizer.prepare()
        megatron_compat.save_padding_of_buckets(getattr(part, "buffers", []))
    return built


@torch.no_grad()
def update(optimizer: Any, learning_rate: float, job: JobSpec) -> UpdateResult:
    """Clip and apply the reduced gradients; an update that is not finite is left out, on all ranks alike.

    The norm is over all model-parallel ranks and the gradients are already averaged over replicas, so every rank
    decides the same.
    """
    clip_grad = job.optimizer.clip_grad
    _set_hyperparameters(optimizer, learning_rate, job.optimizer)
    found_inf = optimizer.prepare_grads()
    if found_inf:
        # fp16 meets overflow by lowering its scale; only when that cannot go lower is the step itself bad.
        at_the_end = job.precision.loss_scale is not None or loss_scale(optimizer) <= job.precision.min_loss_scale
        return UpdateResult(False, math.inf, "the gradient overflows at the lowest loss scale" if at_the_end else None)
    norm = optimizer.clip_grad_norm(clip_grad) if clip_grad > 0 else optimizer.get_grad_norm()
    if not math.isfinite(norm):
        return UpdateResult(applied=False, grad_norm=float(norm), reason="the gradient is not finite")
    optimizer.step_with_ready_grads()
    return UpdateResult(applied=True, grad_norm=float(norm))


def _set_hyperparameters(optimizer: Any, learning_rate: float, spec: OptimizerSpec) -> None:
    """Every step, from the spec: what a checkpoint restores must not outlive a change of the spec."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_mult", 1.0)
        group["weight_decay"] = spec.weight_decay * group.get("wd_mult", 1.0)
        group["betas"] = (spec.adam_beta1, spec.adam_beta2)
        group["eps"] = spec.adam_eps


def loss_scale(optimizer: Any) -> float:
    """The loss scale in force; 1 where none is used."""
    return float(optimizer.get_loss_scale().item())
