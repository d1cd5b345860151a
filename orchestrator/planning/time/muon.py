"""Seconds of what Muon does beside the updates of Adam: its iterations, and the exchange of matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from orchestrator.models.blocks.base import Matrix
from orchestrator.planning.newton_schulz import ROUND_ELEMENTS
from orchestrator.planning.parameters.matrices import (
    Matrices,
    matrices_of_stages,
    matrix_parameters,
    orthogonalized_shapes,
)
from orchestrator.planning.time.communication import Group, group_of
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.time.setting import Setting
from orchestrator.spec.sections.precision import DTYPE_BYTES

_MOVED = 40
"""Bytes per parameter of a matrix in addition to those of Adam's kernel, which reads and writes everything once: the
gradient, the momentum, the update and the weight pass through kernels of their own."""


def muon_seconds(setting: Setting) -> float:
    """Of an update on the stage that takes longest; 0 with other optimizers."""
    return max(_stage_seconds(setting, matrices) for matrices in matrices_of_stages(setting.job))


def _stage_seconds(setting: Setting, matrices: Matrices) -> float:
    job, degrees = setting.job, setting.shape.degrees
    shares = job.parallelism.use_distributed_optimizer
    seconds = 0.0
    for of_experts, ranks, replicas, spread in (
        (False, degrees.tp, job.weight_replicas // job.sharded_copies, degrees.tp),
        (True, degrees.etp, job.expert_replicas // job.sharded_copies, degrees.etp * degrees.ep),
    ):
        held = matrix_parameters(matrices, degrees, of_experts=of_experts)
        if not held:
            continue
        sharing = replicas if shares else 1
        seconds += _orthogonalizing(setting, matrices, ranks, sharing, of_experts=of_experts)
        share = held / sharing
        seconds += setting.streaming(_MOVED * share)
        rounds = math.ceil(share / ROUND_ELEMENTS)
        groups = [group_of(job, setting.device, sharing, spread), group_of(job, setting.device, ranks, 1)]
        seconds += sum(_exchange(setting, group, share / rounds) * rounds for group in groups)
    return seconds


def _exchange(setting: Setting, group: Group, elements: float) -> float:
    """There and back: each rank sends all that it has but its own part."""
    return 2 * group.gather_seconds(elements * DTYPE_BYTES["fp32" if setting.device.is_cpu else "bf16"])


def _orthogonalizing(setting: Setting, matrices: Matrices, ranks: int, replicas: int, *, of_experts: bool) -> float:
    """The mean over the ranks that share the matrices, or the longest single one."""
    total = longest = 0.0
    for matrix, count in matrices.items():
        if of_experts != (matrix.routing is not None):
            continue
        experts = matrix.routing.experts // setting.shape.degrees.ep if matrix.routing is not None else 1
        seconds = sum(_iterations(setting, matrix))
        sharing = replicas * (1 if matrix.parallel == "replicated" else ranks)
        total += count * experts * seconds / sharing
        longest = max(longest, seconds)
    return max(total, longest)


def _iterations(setting: Setting, matrix: Matrix) -> Iterator[float]:
    device, spec = setting.device, setting.job.optimizer
    dtype = "fp32" if device.is_cpu else "bf16"
    for shape in orthogonalized_shapes(matrix, split_qkv=spec.muon_split_qkv):
        short, long = sorted(shape)
        products = ((short, short, long), (short, short, short), (short, long, short))
        yield spec.muon_num_ns_steps * sum(gemm_seconds(*product, device, dtype) for product in products)
