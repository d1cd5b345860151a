"""The host's part of a pass: it starts every kernel, from modules and an autograd that are Python. A GPU that computes
faster than that waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.models.blocks.base import NOTHING as ZERO
from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.models.blocks.residual_stream import time as residual_stream
from orchestrator.planning.layout.chunk_layers import Shares, attending, recomputed_norms
from orchestrator.planning.time.adapters import launches as adapter_launches
from orchestrator.planning.time.kernels.attention import goes_round
from orchestrator.planning.time.passes import Parts, Pass, add, layers_again
from orchestrator.planning.time.setting import Setting
from orchestrator.planning.time.token_exchange import launches as expert_launches


class LaunchTime(NamedTuple):
    """What the host starts for a forward and a backward pass, in seconds."""

    host: ForwardBackward
    """That it takes."""
    gaps: ForwardBackward
    """In which the GPU idles between kernels."""

    def plus(self, other: LaunchTime) -> LaunchTime:
        """This and more."""
        return LaunchTime(self.host.plus(other.host), self.gaps.plus(other.gaps))


NOTHING = LaunchTime(ForwardBackward(0.0, 0.0), ForwardBackward(0.0, 0.0))


def with_host(
    setting: Setting, each: Pass, layers: float, shares: Shares, again: float, more: LaunchTime = NOTHING
) -> Pass:
    """A pass over so many layers with the gaps after its kernels. It takes at least as long as the host, which starts
    `again` kernels to recompute what was not kept, and `more` than those of these layers.
    """
    host, gaps = starts(setting, layers, shares, again).plus(more)
    ahead = _waits(each.forward, host.forward, gaps.forward)
    never = setting.device.is_cpu or setting.captured or setting.kernels.replayed == "layers"
    waits, fitted = 0.0 if never else _waits_for_gpu(setting, shares), setting.device.fitted.experts
    waiting = waits * (fitted.joined_counting_seconds if setting.joins_experts else fitted.counting_seconds) * layers
    back = _waits(each.backward, host.backward, gaps.backward)
    return Pass(add(each.forward, ahead, {"overhead": waiting}), add(each.backward, back))


def _waits_for_gpu(setting: Setting, shares: Shares) -> float:
    """How often the host waits for the GPU in a layer's forward pass, each time as long as for how many tokens each
    expert has.
    """
    of_counts, waits = setting.kernels.token_exchange.waits_for_counts, 0.0
    for block, share in shares.items():
        if (routed := setting.routed(block)) is not None:
            waits += share * (of_counts + (0 if setting.kernels.own_experts else routed.other_waits))
    return waits


def _waits(parts: Parts, host: float, gap: float) -> Parts:
    return {"overhead": gap, "host": max(host - gap - sum(parts.values()), 0.0)}


def starts(setting: Setting, layers: float, shares: Shares, again: float) -> LaunchTime:
    """The same of so many layers."""
    device, fitted = setting.device, setting.device.fitted.host
    # On the CPU the host computes itself: nothing waits for it.
    work = device.efficiency.launch * (1.0 if device.is_cpu else fitted.starts_of_kernel * setting.host_slowness)
    in_graphs = setting.captured or setting.kernels.replayed == "layers"
    if in_graphs:  # a start for each micro-batch, or for each layer
        work = 0.0
    kernels, beside = _kernels(setting, shares), _beside(setting)
    if setting.kernels.replayed == "attention":
        kernels, beside = _more(setting, shares), ForwardBackward(0, 0)
    gap_of_one = fitted.gap_in_graph if in_graphs else fitted.gap * device.efficiency.launch
    return LaunchTime(
        ForwardBackward(
            work * layers * (kernels.forward + beside.forward),
            work * (layers * (kernels.backward + beside.backward) + again),
        ),
        ForwardBackward(kernels.forward * layers * gap_of_one, kernels.backward * layers * gap_of_one),
    )


def started_again(setting: Setting, layers: int, shares: Shares) -> float:
    """Kernels that recomputing starts once more, of so many layers."""
    granularity = setting.job.runtime.recompute_granularity
    if granularity is None:
        return 0.0
    if granularity == "full":
        return layers_again(setting, layers) * (_kernels(setting, shares).forward + _beside(setting).forward)
    modules = setting.job.runtime.recomputed_modules
    started, of_layers = setting.device.fitted.host.recomputed, {"mlp": 0.0, "moe": 0.0}
    of_layers |= {"core_attn": attending(setting.model, shares), "layernorm": recomputed_norms(shares) / 2}
    of_layers |= {block.recomputed_as: share for block, share in shares.items() if block.recomputed_as is not None}
    found = sum(started[name] * of_layers[name] for name in modules) * _plain(setting).forward
    found += of_layers["core_attn"] * _exchanging(setting).forward if "core_attn" in modules else 0.0
    again = {block: share for block, share in shares.items() if block.recomputed_as in modules}
    return layers * (found + _more(setting, again).forward)


def _more(setting: Setting, shares: Shares) -> ForwardBackward:
    """Kernels that the host starts more than for MLPs."""
    found = ForwardBackward(0, 0)
    for block, share in shares.items():
        if block is not setting.model.attention:
            found = found.plus(block.more_launches(setting.model), share)
        if (routed := setting.routed(block)) is not None:
            found = found.plus(expert_launches(setting, routed), share)
    return found


def _kernels(setting: Setting, shares: Shares) -> ForwardBackward:
    """Kernels that the host starts for a layer."""
    found = _plain(setting).plus(setting.device.fitted.quantization.launches if setting.quantizes else ZERO)
    return ZERO.plus(found, _of_whole(setting)).plus(_more(setting, shares)).plus(adapter_launches(setting, shares))


def _of_whole(setting: Setting) -> float:
    """What a layer is of one with attention and MLP."""
    return setting.device.fitted.hybrid.launches if setting.model.family.is_hybrid else 1.0


def _plain(setting: Setting) -> ForwardBackward:
    """Those of a dense layer that is trained whole."""
    kernels = setting.kernels
    fewer = kernels.rotated_launches if setting.rotates_at_once and not setting.device.is_cpu else None
    found = (fewer or kernels.launches).plus(setting.model.attention.more_launches(setting.model))
    return found.plus(residual_stream.more_launches(setting.model))


def _beside(setting: Setting) -> ForwardBackward:
    """What the host does for a layer beside starting its kernels, in kernels that would take it as long: additions
    with a bias or dropout, the collectives of tensor parallelism, and attention over a sequence that ranks share.
    """
    model, fitted = setting.model, setting.device.fitted.host
    found = fitted.dropout if model.add_bias_linear or model.hidden_dropout else ForwardBackward(0, 0)
    if setting.tp > 1:
        collectives = fitted.collectives_in_parallel if setting.sp else fitted.collectives
        found = found.plus(collectives, setting.kernels.collective)
    return ZERO.plus(found.plus(_exchanging(setting)), _of_whole(setting))


def _exchanging(setting: Setting) -> ForwardBackward:
    """The same of attention where ranks share a sequence."""
    if setting.cp == 1:
        return ForwardBackward(0, 0)
    ring, once = setting.kernels.ring, setting.kernels.exchange
    return ForwardBackward(setting.cp * ring.forward, setting.cp * ring.backward) if goes_round(setting) else once
