"""The optimizer of one rank, and the step that skips what is not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from orchestrator.planning.training_schedule.hyperparameters import Hyperparameters
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.network.model import DTYPES
from orchestrator.runtime.optimizers.adam import GroupStepAdam
from orchestrator.runtime.optimizers.matrices import matrices_of
from orchestrator.runtime.optimizers.muon import Muon
from orchestrator.runtime.optimizers.offloaded_adam import OffloadedAdam
from orchestrator.runtime.optimizers.parameter_groups import group_overrides
from orchestrator.runtime.optimizers.stateful import StatefulOptimizer
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.optimizer import OptimizerSpec


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer step did. `grad_norm` is the global L2 norm before clipping."""

    applied: bool
    grad_norm: float
    reason: str | None = None
    """Why the update was skipped; None when it was applied or when only the loss scale had to shrink."""


def build_optimizer(job: JobSpec, chunks: list[Any]) -> Any:
    """megatron-core's optimizer over our Adam, Muon or SGD, for chunks wrapped in data parallelism."""
    precision, optimizer, parallelism = job.precision, job.optimizer, job.parallelism
    megatron_compat.use_adam(_adam_of(optimizer))
    megatron_compat.use_distributed_optimizer(job.is_fully_sharded)
    config = OptimizerConfig(
        optimizer="adam" if optimizer.kind.has_second_moment else "sgd",
        lr=optimizer.lr,
        min_lr=optimizer.min_lr,
        weight_decay=optimizer.weight_decay,
        decoupled_weight_decay=optimizer.decoupled_weight_decay,
        adam_beta1=optimizer.adam_beta1,
        adam_beta2=optimizer.adam_beta2,
        adam_eps=optimizer.adam_eps,
        sgd_momentum=optimizer.sgd_momentum,
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
    )
    if optimizer.offload_fraction > 0:
        megatron_compat.leave_main_copies_to_optimizer(config)
    built = get_megatron_optimizer(config, chunks, config_overrides=group_overrides(optimizer))
    for part in parts_of(built):
        if isinstance(part.optimizer, Muon):
            matrices = {weight: each for chunk in chunks for weight, each in matrices_of(chunk, optimizer).items()}
            part.optimizer.orthogonalize(*megatron_compat.held_matrices(part, matrices), optimizer)
        if isinstance(part.optimizer, StatefulOptimizer):
            part.optimizer.dtypes = _narrow_moments(optimizer)
            if isinstance(part.optimizer, OffloadedAdam):
                part.optimizer.fraction = optimizer.offload_fraction
            part.optimizer.prepare()
            megatron_compat.save_state_of(part)
            megatron_compat.write_weights_of(part)
    return built


def _adam_of(spec: OptimizerSpec) -> type[GroupStepAdam]:
    if spec.kind.orthogonalizes:
        return Muon
    return OffloadedAdam if spec.offload_fraction > 0 else GroupStepAdam


def _narrow_moments(spec: OptimizerSpec) -> dict[str, torch.dtype]:
    written = {"exp_avg": DTYPES[spec.exp_avg_dtype], "exp_avg_sq": DTYPES[spec.exp_avg_sq_dtype]}
    return {key: dtype for key, dtype in written.items() if dtype != torch.float32}


@torch.no_grad()
def update(optimizer: Any, values: Hyperparameters, job: JobSpec) -> UpdateResult:
    """Clip and apply the reduced gradients; an update that is not finite is left out, on all ranks alike.

    The norm is over all model-parallel ranks and the gradients are already averaged over replicas, so every rank
    decides the same.
    """
    _set_hyperparameters(optimizer, values, job.optimizer)
    found_inf = optimizer.prepare_grads()
    if found_inf:
        # fp16 meets overflow by lowering its scale; only when that cannot go lower is the step itself bad.
        at_the_end = job.precision.loss_scale is not None or loss_scale(optimizer) <= job.precision.min_loss_scale
        return UpdateResult(False, math.inf, "the gradient overflows at the lowest loss scale" if at_the_end else None)
    ours = [part.optimizer for part in parts_of(optimizer) if isinstance(part.optimizer, StatefulOptimizer)]
    for each in ours:
        each.look_up()
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return UpdateResult(applied=False, grad_norm=norm, reason="the gradient is not finite")
    _clip(ours, job.optimizer.clip_grad, norm)
    optimizer.step_with_ready_grads()
    return UpdateResult(applied=True, grad_norm=norm)


def parts_of(optimizer: Any) -> list[Any]:
    """megatron-core keeps the experts' parameters in an optimizer of their own."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def _clip(ours: list[StatefulOptimizer], largest: float, norm: float) -> None:
    """Have every gradient scaled by the norm of all of them, the experts' included, as it is applied."""
    # The sum is megatron-core's, and torch's.
    factor = min(1.0, largest / (norm + 1e-6)) if largest > 0 else 1.0
    for each in ours:
        each.factor = factor


def _set_hyperparameters(optimizer: Any, values: Hyperparameters, spec: OptimizerSpec) -> None:
    """Every step, from the spec: what a checkpoint restores must not outlive a change of the spec."""
    if not spec.kind.has_second_moment:
        fixed: dict[str, Any] = {"momentum": spec.sgd_momentum}
    else:
        fixed = {"betas": (spec.adam_beta1, spec.adam_beta2), "eps": spec.adam_eps}
    for group in optimizer.param_groups:
        group["lr"] = values.decoupled_lr if group.get("is_decoupled_lr") else values.lr
        group["weight_decay"] = values.weight_decay * group.get("wd_mult", 1.0)
        group.update(fixed)


def loss_scale(optimizer: Any) -> float:
    """The loss scale in force; 1 where none is used."""
    return float(optimizer.get_loss_scale().item())
