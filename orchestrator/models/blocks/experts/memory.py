"""What a layer with experts holds in place of a dense MLP. Bytes of one rank and micro-batch.

Tokens are taken to be spread evenly over the experts, as the balancing losses want it: a rank whose experts are asked
for more often than others holds more, up to all tokens of its expert-parallel group, or up to their capacity.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import CoreKernels, RankShape
from orchestrator.models.blocks.mlp.memory import exact_gate, halves, quick_gate

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

_ROUTING = 24
"""Bytes per token and expert that the router keeps: logits, weights, scores and the map of who goes where, in fp32."""
_INDEX = 8
"""Bytes of the place of a token among those that are sent, which is kept to bring it back."""


def saved(model: ExpertFields, shape: RankShape, kernels: CoreKernels) -> int:
    """From the norm's output to what is added to the residual stream."""
    router = shape.own_tokens * model.expert_count * _ROUTING + _rows(model, shape) * _INDEX
    if model.moe_apply_probs_on_input:
        router += _routed(model, shape)  # before it is multiplied
    of_inner, of_shared = _times_kept(model, shape)
    of_inner = 3 if kernels.joins_experts else of_inner
    gated = shape.stream + shape.own_tokens * shape.width if model.moe_shared_expert_gate else 0
    return router + _routed(model, shape) + of_inner * _inner(model, shape) + of_shared * _shared(model, shape) + gated


def inputs(model: ExpertFields, shape: RankShape, kernels: CoreKernels) -> int:
    """Saved inputs of linear layers that FP8 may store narrow: routed experts in our kernels store 16 bits."""
    routed = 0 if kernels.joins_experts else _routed(model, shape) + _inner(model, shape)
    return routed + _shared(model, shape)


def copied_inputs(model: ExpertFields, shape: RankShape) -> int:
    """What the router takes is also the shared expert's input."""
    return shape.stream if model.shared_expert_size else 0


def backward(model: ExpertFields, shape: RankShape, kernels: CoreKernels) -> int:
    """The most that its backward pass takes beyond everything that was saved when it began."""
    routed, inner, gate = _routed(model, shape), _inner(model, shape), halves(model)
    joined = inner if kernels.joins_experts else 0  # the second linear and the activation are one function
    together = model.expert_count // shape.degrees.ep if kernels.groups_experts else 1
    weight = together * (model.moe_ffn_size // shape.degrees.etp) * shape.hidden * shape.width
    second_linear, activation, first_linear = (
        routed + inner + joined + weight,
        routed + gate * inner + joined,
        routed - inner + gate * weight,
    )
    return shape.stream + routed + max(second_linear, activation, first_linear)


def buffers(model: ExpertFields, shape: RankShape) -> int:
    """Into which the all-gather dispatcher brings the tokens of all ranks that share experts."""
    ranks = shape.degrees.etp * shape.degrees.ep
    return ranks * shape.stream if model.moe_token_dispatcher_type == "allgather" and ranks > 1 else 0


def _rows(model: ExpertFields, shape: RankShape) -> int:
    """Tokens that this rank's experts compute on, each as often as it is routed to one of them."""
    return math.ceil(shape.own_tokens * model.moe_router_topk * model.moe_kept_share) * shape.degrees.etp


def _routed(model: ExpertFields, shape: RankShape) -> int:
    """Their hidden states."""
    return _rows(model, shape) * shape.hidden * shape.width


def _inner(model: ExpertFields, shape: RankShape) -> int:
    """What is inside the experts, without its gate."""
    return _rows(model, shape) * (model.moe_ffn_size // shape.degrees.etp) * shape.width


def _shared(model: ExpertFields, shape: RankShape) -> int:
    """What is inside the shared expert, without its gate."""
    return shape.tokens * (model.shared_expert_size // shape.tp) * shape.width


def _times_kept(model: ExpertFields, shape: RankShape) -> tuple[int, int]:
    """How often the width inside routed experts, and inside the shared one, is kept. megatron-core weights what leaves
    the activation by the router's choice: SwiGLU in one kernel with it, others in kernels of their own, which keep both
    what they take and what they give; a gate that is not SwiGLU keeps both its factors and their product.
    """
    if model.activation == "swiglu":
        return 3, 3
    if model.activation == "quick_geglu":
        return quick_gate(model) + 1, quick_gate(model)
    if model.activation == "geglu_exact":
        return exact_gate(shape) + 1, exact_gate(shape)
    if model.activation == "relu":  # needs its output alone
        return 2, 1
    return (6, 5) if model.is_gated else (3, 2)
