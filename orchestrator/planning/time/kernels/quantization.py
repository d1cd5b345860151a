"""Seconds of what FP8 and FP4 add to a matrix product: its operands are cast, in both orders, before it."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.models.blocks.base import NOTHING, ForwardBackward, Matrix, Routing
from orchestrator.planning.time.kernels.gemm import Linear
from orchestrator.planning.time.setting import Setting


def casting_seconds(setting: Setting, linears: Iterable[Linear]) -> ForwardBackward:
    """Casting the inputs of linear layers forward, the gradients of their outputs backward, and once per step, at the
    first micro-batch, their weights.
    """
    found = NOTHING
    for linear in linears:
        found = found.plus(_cast(setting, setting.tokens, linear.inputs, linear.outputs, 1))
    return found


def expert_casting_seconds(setting: Setting, matrix: Matrix, routing: Routing) -> ForwardBackward:
    """The same of a matrix that each expert of a rank has."""
    if setting.expert_products == setting.dtype:
        return NOTHING
    return _cast(setting, setting.rows(matrix), *setting.part(matrix), routing.experts // setting.shape.degrees.ep)


def _cast(setting: Setting, rows: float, inputs: float, outputs: float, count: int) -> ForwardBackward:
    precision, fitted = setting.job.precision, setting.device.fitted.quantization
    recipe = precision.fp8.recipe if precision.fp8 is not None else precision.products
    each = {**fitted.cast_bytes, **fitted.block_cast_bytes}[recipe]
    weights = count * inputs * outputs / max(setting.job.num_micro_batches, 1)
    return ForwardBackward(
        setting.streaming(each * (rows * inputs + weights)), setting.streaming(each * rows * outputs)
    )
