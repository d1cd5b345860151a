"""Seconds of what FP8 and FP4 add to a matrix product: its operands are cast, in both orders, before it."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.time.kernels.gemm import Linear
from orchestrator.planning.time.setting import Setting


def casting_seconds(setting: Setting, linears: Iterable[Linear]) -> ForwardBackward:
    """Casting the inputs of linear layers forward, the gradients of their outputs backward, and once per step, at the
    first micro-batch, their weights.
    """
    precision, fitted = setting.job.precision, setting.device.fitted.quantization
    recipe = precision.fp8.recipe if precision.fp8 is not None else precision.products
    each = {**fitted.cast_bytes, **fitted.block_cast_bytes}[recipe]
    forward = backward = 0.0
    for linear in linears:
        weights = linear.inputs * linear.outputs / max(setting.job.num_micro_batches, 1)
        forward += each * (setting.tokens * linear.inputs + weights)
        backward += each * setting.tokens * linear.outputs
    return ForwardBackward(setting.streaming(forward), setting.streaming(backward))
