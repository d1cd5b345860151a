"""What a layer with experts holds in place of a dense MLP. Bytes of one rank.

Tokens are taken to be spread evenly over the experts, as the balancing losses want it: a rank whose experts are asked
for more often than others holds more, up to all tokens of its expert-parallel group, or up to their capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.kernel_selection.experts import groups_experts
from orchestrator.models.blocks.base import RankShape
from orchestrator.models.blocks.mlp.memory import halves
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers

_ROUTING = 24
"""Bytes per token and expert that the router keeps: logits, weights, scores and the map of who goes where, in fp32."""
_INDEX = 8
"""Bytes of the place of a token among those that are sent, which is kept to bring it back."""


@dataclass(frozen=True)
class ExpertSizes:
    """Bytes of what passes the experts of a rank for one micro-batch."""

    rows: int
    """Tokens that this rank's experts compute on, each as often as it is routed to one of them."""
    routed: int
    """Their hidden states."""
    inner: int
    """What is inside the experts, without its gate."""
    weight: int
    """The second matrix, of one expert or of all that are computed in one kernel."""
    shared: int
    """What is inside the shared expert, without its gate."""
    gate: int


def expert_sizes(job: JobSpec, sizes: RankShape, layers: Layers) -> ExpertSizes:
    """The sizes of a job that has experts."""
    model, degrees = job.model, job.parallelism
    etp = degrees.expert_tensor_parallel
    rows = math.ceil(sizes.own_tokens * model.moe_router_topk * model.moe_kept_share) * etp
    ffn = model.moe_ffn_size // etp
    grouped = groups_experts(job, layers)
    together = model.expert_count // degrees.expert_model_parallel_size if grouped else 1
    shared = model.shared_expert_size // degrees.tensor_model_parallel_size
    return ExpertSizes(
        rows=rows,
        routed=rows * sizes.hidden * sizes.width,
        inner=rows * ffn * sizes.width,
        weight=together * ffn * sizes.hidden * sizes.width,
        shared=sizes.tokens * shared * sizes.width,
        gate=halves(model),
    )


def saved_by_experts(job: JobSpec, sizes: RankShape, layers: Layers) -> int:
    """Bytes kept to the backward pass, from the norm's output to what is added to the residual stream."""
    each = expert_sizes(job, sizes, layers)
    router = sizes.own_tokens * job.model.expert_count * _ROUTING + each.rows * _INDEX
    of_inner, of_shared = _times_kept(job.model)
    return router + each.routed + of_inner * each.inner + of_shared * each.shared


def _times_kept(model: ModelSpec) -> tuple[int, int]:
    """How often the width inside routed experts, and inside the shared one, is kept. megatron-core weights what leaves
    the activation by the router's choice: SwiGLU in one kernel with it, others in kernels of their own, which keep both
    what they take and what they give; a gate that is not SwiGLU keeps both its factors and their product.
    """
    if model.activation == "swiglu":
        return 3, 3
    if model.activation == "relu":  # needs its output alone
        return 2, 1
    return (6, 5) if model.is_gated else (3, 2)


def inputs_of_experts(job: JobSpec, sizes: RankShape, layers: Layers) -> int:
    """Of what is kept, the inputs of the experts' linear layers."""
    each = expert_sizes(job, sizes, layers)
    return each.routed + each.inner + each.shared


def backward_of_experts(job: JobSpec, sizes: RankShape, layers: Layers) -> int:
    """The most that the backward pass of a layer with experts takes beyond everything that was saved when it began."""
    each = expert_sizes(job, sizes, layers)
    second_linear = each.routed + each.inner + each.weight
    activation = each.routed + each.gate * each.inner
    first_linear = each.routed - each.inner + each.gate * each.weight
    again = saved_by_experts(job, sizes, layers) if "moe" in job.runtime.recomputed_modules else 0
    return again + sizes.stream + each.routed + max(second_linear, activation, first_linear)


def gathered_tokens(job: JobSpec, sizes: RankShape) -> int:
    """Bytes of the buffer into which the all-gather dispatcher brings the tokens of all ranks that share experts."""
    degrees = job.parallelism
    ranks = degrees.expert_tensor_parallel * degrees.expert_model_parallel_size
    if not job.model.has_experts or job.model.moe_token_dispatcher_type != "allgather" or ranks == 1:
        return 0
    return ranks * sizes.stream
