"""Seconds of matrices that each expert of a rank has, and of bringing tokens to them and back."""

from __future__ import annotations

from orchestrator.kernel_selection.experts import groups_experts
from orchestrator.models.blocks.base import NOTHING, ForwardBackward, Matrix, RoutedTokens, Routing
from orchestrator.planning.time.communication import group_of, linked_ranks
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.time.setting import Setting


def routed_seconds(setting: Setting, matrix: Matrix, routing: Routing) -> ForwardBackward:
    """The products of all experts of a rank with such a matrix."""
    inputs, outputs = setting.part(matrix)
    count, tokens = routing.experts // setting.shape.degrees.ep, setting.rows(matrix)
    weights = 0.0
    if not setting.is_frozen:
        weights = count * gemm_seconds(outputs, inputs, tokens / count, setting.device, setting.products)
    return ForwardBackward(
        _grouped(setting, inputs, outputs, count, tokens), _grouped(setting, outputs, inputs, count, tokens) + weights
    )


def _grouped(setting: Setting, inputs: float, outputs: float, count: int, tokens: float) -> float:
    """One product for each expert, or all in one kernel: which fills the processors, and still reads every weight."""
    if not groups_experts(setting.job, setting.kernels.layers):
        return count * gemm_seconds(tokens / count, outputs, inputs, setting.device, setting.products)
    read = setting.streaming((tokens * (inputs + outputs) + count * inputs * outputs) * setting.size)
    return max(gemm_seconds(tokens, outputs, inputs, setting.device, setting.products), read)


def moving_seconds(setting: Setting, routed: RoutedTokens) -> ForwardBackward:
    """Routing, and sorting tokens by expert and back, in memory."""
    fitted = setting.device.fitted.experts
    found = NOTHING.plus(fitted.moved, routed.sent * setting.size)
    found = found.plus(fitted.sorted, routed.computed * setting.size if routed.experts > 1 else 0.0)
    found = found.plus(fitted.routed, routed.scores)
    return ForwardBackward(setting.streaming(found.forward), setting.streaming(found.backward))


def dispatch_seconds(setting: Setting, routed: RoutedTokens) -> float:
    """Bringing tokens to the ranks of their experts and back, which a forward and a backward pass do once each."""
    etp, ep = setting.shape.degrees.etp, setting.shape.degrees.ep
    if routed.gathered:
        return 2 * group_of(setting.job, setting.device, etp * ep, 1).gather_seconds(routed.gathered * setting.size)
    split = group_of(setting.job, setting.device, etp, 1).gather_seconds(routed.computed * setting.size)
    return 2 * (_exchange(setting, ep, etp, routed.sent * setting.size) + split)


def _exchange(setting: Setting, size: int, stride: int, count: float) -> float:
    """All-to-all of `count` bytes from each of `size` ranks that are `stride` apart. What goes to other machines leaves
    through the rank's own network port, beside what stays.
    """
    if size == 1:
        return 0.0
    device, efficiency = setting.device, setting.device.efficiency
    together = max(1, min(size, linked_ranks(setting.job, device) // stride))
    inside = count * (together - 1) / size / (device.link_bandwidth * efficiency.link)
    if together == size:
        return inside + efficiency.link_latency
    outside = count * (size - together) / size / (device.network_bandwidth * efficiency.network)
    return max(inside, outside) + efficiency.network_latency


def launches(setting: Setting, routed: RoutedTokens) -> ForwardBackward:
    """Kernels that the host starts for a layer with experts beside those of one with a dense MLP."""
    fitted, grouped = setting.device.fitted.experts, groups_experts(setting.job, setting.kernels.layers)
    return fitted.launches.plus(fitted.launches_of_expert, 0 if grouped else routed.experts)
