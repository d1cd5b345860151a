"""Seconds of the experts of a layer: bringing tokens to them, their matrix products, and bringing the result back.

Tokens are taken to be spread evenly over the experts: below a capacity factor of 1 each drops the same part. An
uneven step takes as long as its busiest rank.
"""

from __future__ import annotations

from orchestrator.kernel_selection.experts import groups_experts
from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.time.communication import group_of, linked_ranks
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.time.setting import Setting


def rows(setting: Setting) -> float:
    """Tokens that the experts of a rank compute on, each as often as it is routed to one of them."""
    return _kept(setting) * setting.job.parallelism.expert_tensor_parallel


def _kept(setting: Setting) -> float:
    """Tokens of this rank, each as often as an expert takes it."""
    return setting.own_tokens * setting.model.moe_router_topk * setting.model.moe_kept_share


def local_experts(setting: Setting) -> int:
    """Experts of a layer on each rank."""
    return setting.model.expert_count // setting.job.parallelism.expert_model_parallel_size


def expert_products(setting: Setting) -> ForwardBackward:
    """The matrix products of a rank's experts and of the router."""
    model, etp = setting.model, setting.job.parallelism.expert_tensor_parallel
    up = model.moe_ffn_size * (2 if model.is_gated else 1)
    forward = backward = 0.0
    for inputs, outputs in ((model.hidden_size, up / etp), (model.moe_ffn_size / etp, model.hidden_size)):
        forward += _grouped(setting, inputs, outputs)
        backward += _grouped(setting, outputs, inputs) + _weight_gradients(setting, inputs, outputs)
    gate = gemm_seconds(setting.own_tokens, model.expert_count, model.hidden_size, setting.device, setting.dtype)
    return ForwardBackward(forward + gate, backward + 2 * gate)


def _grouped(setting: Setting, inputs: float, outputs: float) -> float:
    """One product for each expert, or all in one kernel: which fills the processors, and still reads every weight."""
    count, tokens = local_experts(setting), rows(setting)
    if not is_grouped(setting):
        return count * gemm_seconds(tokens / count, outputs, inputs, setting.device, setting.products)
    read = setting.streaming((tokens * (inputs + outputs) + count * inputs * outputs) * setting.size)
    return max(gemm_seconds(tokens, outputs, inputs, setting.device, setting.products), read)


def _weight_gradients(setting: Setting, inputs: float, outputs: float) -> float:
    count, tokens = local_experts(setting), rows(setting)
    return count * gemm_seconds(outputs, inputs, tokens / count, setting.device, setting.products)


def is_grouped(setting: Setting) -> bool:
    """Whether all experts of a rank are computed in one kernel."""
    return groups_experts(setting.job, setting.kernels.layers)


def moving_seconds(setting: Setting) -> ForwardBackward:
    """Routing, and sorting tokens by expert and back, in memory."""
    model = setting.model
    sent = _kept(setting) * model.hidden_size * setting.size
    sorted_ = rows(setting) * model.hidden_size * setting.size if local_experts(setting) > 1 else 0.0
    scores = setting.own_tokens * model.expert_count
    each = setting.device.fitted.experts
    forward = each.moved.forward * sent + each.sorted.forward * sorted_ + each.routed.forward * scores
    backward = each.moved.backward * sent + each.sorted.backward * sorted_ + each.routed.backward * scores
    return ForwardBackward(setting.streaming(forward), setting.streaming(backward))


def dispatch_seconds(setting: Setting) -> float:
    """Bringing tokens to the ranks of their experts and back, which a forward and a backward pass do once each."""
    model, degrees = setting.model, setting.job.parallelism
    etp, ep = degrees.expert_tensor_parallel, degrees.expert_model_parallel_size
    state = setting.own_tokens * model.hidden_size * setting.size
    if model.moe_token_dispatcher_type == "allgather":
        return 2 * group_of(setting.job, setting.device, etp * ep, 1).gather_seconds(etp * ep * state)
    split = group_of(setting.job, setting.device, etp, 1).gather_seconds(
        rows(setting) * model.hidden_size * setting.size
    )
    return 2 * (_exchange(setting, ep, etp, _kept(setting) * model.hidden_size * setting.size) + split)


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


def launches(setting: Setting) -> ForwardBackward:
    """Kernels that the host starts for a layer with experts beside those of one with a dense MLP."""
    fitted = setting.device.fitted.experts
    return fitted.launches.plus(fitted.launches_of_expert, 0 if is_grouped(setting) else local_experts(setting))
