"""Seconds of the products of matrices that each expert of a rank has."""

from __future__ import annotations

from orchestrator.kernel_selection.experts import groups_experts, is_large_product
from orchestrator.models.blocks.base import ForwardBackward, Matrix, Routing
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.time.setting import Setting


def routed_seconds(setting: Setting, matrix: Matrix, routing: Routing) -> ForwardBackward:
    """The products of all experts of a rank with such a matrix."""
    inputs, outputs = setting.part(matrix)
    count, tokens = routing.experts // setting.shape.degrees.ep, setting.rows(matrix)
    weights = 0.0
    if not setting.is_frozen:
        weights = count * gemm_seconds(outputs, inputs, tokens / count, setting.device, setting.expert_products)
    if setting.joins_experts:
        weights += setting.streaming(setting.device.fitted.experts.joined_gradients * count * inputs * outputs)
    slower = setting.device.fitted.experts.joined_products if setting.joins_experts else ForwardBackward(1, 1)
    return ForwardBackward(
        _grouped(setting, inputs, outputs, count, tokens, slower.forward),
        _grouped(setting, outputs, inputs, count, tokens, slower.backward) + weights,
    )


def _grouped(setting: Setting, inputs: float, outputs: float, count: int, tokens: float, slower: float) -> float:
    """One product for each expert, or all in one kernel: which fills the processors, and still reads every weight."""
    products = setting.expert_products
    are_large = setting.joins_experts and is_large_product(setting.job, inputs, outputs)
    if are_large or not groups_experts(setting.job, setting.kernels.layers):
        return count * gemm_seconds(tokens / count, outputs, inputs, setting.device, products)
    read = setting.streaming((tokens * (inputs + outputs) + count * inputs * outputs) * setting.size)
    return max(slower * gemm_seconds(tokens, outputs, inputs, setting.device, products), read)
