"""Seconds of bringing tokens to the ranks of their experts and back, and what starts their kernels."""

from __future__ import annotations

from orchestrator.kernel_selection.experts import groups_experts
from orchestrator.models.blocks.base import NOTHING, ForwardBackward, RoutedTokens
from orchestrator.planning.time.communication import Group, group_of, linked_ranks
from orchestrator.planning.time.setting import Setting


def moving_seconds(setting: Setting, routed: RoutedTokens) -> ForwardBackward:
    """Routing, and sorting tokens by expert and back, in memory."""
    fitted, exchange = setting.device.fitted.experts, setting.kernels.token_exchange
    found = NOTHING.plus(fitted.routed if exchange.fuses_router else fitted.streamed_routing, routed.scores)
    if exchange.moved is not None:
        found = found.plus(exchange.moved, routed.sent * setting.size)
    else:
        fused = exchange.fuses_permutation
        found = found.plus(fitted.moved if fused else fitted.unfused_moved, routed.sent * setting.size)
        if routed.experts > 1:
            found = found.plus(fitted.sorted if fused else fitted.unfused_sorted, routed.computed * setting.size)
    if setting.joins_experts:
        found = found.plus(fitted.joined_biased, routed.biased * setting.size)
    else:
        found = found.plus(fitted.biased, routed.biased * setting.size)
        found = found.plus(fitted.clamped, routed.clamped * setting.size)
    return ForwardBackward(setting.streaming(found.forward), setting.streaming(found.backward))


def dispatch_seconds(setting: Setting, routed: RoutedTokens) -> float:
    """Bringing tokens to the ranks of their experts and back, which a forward and a backward pass do once each."""
    etp, ep = setting.shape.degrees.etp, setting.shape.degrees.ep
    if routed.gathered:
        return 2 * group_of(setting.job, setting.device, etp * ep, 1).gather_seconds(routed.gathered * setting.size)
    split = group_of(setting.job, setting.device, etp, 1).gather_seconds(routed.computed * setting.size)
    if setting.kernels.token_exchange.sends_once:
        return 2 * (_exchange_once(setting, ep, etp, routed) + split)
    return 2 * (_exchange(setting, ep, etp, routed.sent * setting.size) + split)


def exchanging_group(setting: Setting) -> Group:
    """The ranks that bring each other tokens."""
    return group_of(setting.job, setting.device, setting.shape.degrees.ep, setting.shape.degrees.etp)


def _exchange(setting: Setting, size: int, stride: int, count: float) -> float:
    """All-to-all of `count` bytes from each of `size` ranks that are `stride` apart. What goes to other machines leaves
    through the rank's own network port, beside what stays.
    """
    if size == 1:
        return 0.0
    together = _together(setting, size, stride)
    return _sent(setting, size, together, count * (together - 1) / size, count * (size - together) / size)


def _exchange_once(setting: Setting, size: int, stride: int, routed: RoutedTokens) -> float:
    """The same of what a rank sends, where a token crosses once to each machine that has experts of it, and there is
    brought on to each of their ranks.
    """
    if size == 1:
        return 0.0
    together = _together(setting, size, stride)
    once, machines = routed.sent / routed.chosen * setting.size, size / together
    inside = once * _reached(routed, size) * (together - 1) / together
    outside = once * _reached(routed, machines) * (machines - 1) / machines
    return _sent(setting, size, together, inside, outside)


def _reached(routed: RoutedTokens, places: float) -> float:
    """At how many of so many places a token has experts, on average."""
    open_to_it = max(places * routed.among, 1.0)
    return open_to_it * (1 - (1 - 1 / open_to_it) ** routed.chosen)


def _together(setting: Setting, size: int, stride: int) -> int:
    """Ranks of such a group whose GPUs are linked."""
    return max(1, min(size, linked_ranks(setting.job, setting.device) // stride))


def _sent(setting: Setting, size: int, together: int, inside: float, outside: float) -> float:
    """Seconds of so many bytes over links, and so many over the network."""
    device, efficiency = setting.device, setting.device.efficiency
    over_links = inside / (device.link_bandwidth * efficiency.link)
    if together == size:
        return over_links + efficiency.link_latency
    return max(over_links, outside / (device.network_bandwidth * efficiency.network)) + efficiency.network_latency


def launches(setting: Setting, routed: RoutedTokens) -> ForwardBackward:
    """Kernels that the host starts for a layer with experts beside those of one with a dense MLP."""
    fitted, grouped = setting.device.fitted.experts, groups_experts(setting.job, setting.kernels.layers)
    found = fitted.launches.plus(fitted.launches_of_expert, 0 if grouped else routed.experts)
    one_by_one = routed.biased and not setting.joins_experts
    return found.plus(fitted.launches_of_bias, routed.experts if one_by_one else 0)
