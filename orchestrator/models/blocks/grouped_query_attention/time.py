"""What grouped-query attention moves in memory and between ranks, beside its matrices and its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import NOTHING, CoreWork, ForwardBackward
from orchestrator.models.blocks.grouped_query_attention.parameters import rotated_layers

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


_GATE = ForwardBackward(5, 6)
"""Accesses of gates: copied out of the projection, their sigmoid multiplied with what the heads give."""
_GATE_LAUNCHES = ForwardBackward(4, 5)
_CHUNK_LAUNCHES, _JOINED_LAUNCHES = ForwardBackward(1, 3), ForwardBackward(1, 3)
"""Kernels of a further chunk of attention, and of putting outputs, and gradients, of chunks together; counted, not
measured."""


def moved(model: Fields, work: CoreWork) -> ForwardBackward:
    """Elements that kernels read and write between the projection and the core, and behind it."""
    query = work.tokens * (model.num_attention_heads * model.head_dim) / work.tp
    key = work.tokens * (model.query_groups * model.head_dim) / work.tp
    inputs = _inputs(model, work, query, key)
    if model.has_chunks:  # what each gives is put together, and the gradients of what it takes
        rotated = rotated_layers(model)
        inputs = inputs.plus(ForwardBackward(2 * query, 2 * (query + 2 * key)), rotated)
    if model.attention_output_gate:
        inputs = inputs.plus(_GATE, query)
    normed = 1.0 if model.qk_layernorm else rotated_layers(model) if model.qk_l2_norm else 0.0
    return inputs.plus(work.norm, normed * (query + key))


def _inputs(model: Fields, work: CoreWork, query: float, key: float) -> ForwardBackward:
    kernels = work.kernels
    if work.rotates_at_once:
        assert kernels.projection is not None
        is_grouped = key < query  # and goes to tensors of its own, values too
        elements = query + 2 * key if is_grouped or work.cp > 1 else query + key
        return NOTHING.plus(kernels.projection, elements)
    rotated = model.rotary_percent * rotated_layers(model)
    forward = kernels.rope.forward * rotated * (query + key) + kernels.attention_layout.forward * query
    backward = kernels.rope.backward * rotated * (query + key) + kernels.attention_layout.backward * query
    joined = 0 if kernels.returns_together and _lie_together(model, work) else kernels.joins
    return ForwardBackward(forward, backward + joined * (query + 2 * key))


def _lie_together(model: Fields, work: CoreWork) -> bool:
    """Whether the core takes queries, keys and values as the projection left them."""
    evenly = model.query_groups == model.num_attention_heads and not model.qk_layernorm and work.cp == 1
    return evenly and work.is_fused and model.position_embedding_type != "rope"


def exchanged(model: Fields) -> int:
    """Elements of each token that ranks which share a sequence bring each other: its keys and values."""
    return 2 * model.query_groups * model.head_dim


def gathered(model: Fields, tp: int) -> int:
    """Elements of each token that tensor-parallel ranks gather: where several share a key/value head, each has the
    projections of all (megatron-core's `get_query_key_value_tensors`), whose gradients are scattered back; and the
    means of norms over all heads.
    """
    shared = model.qk_layernorm and model.qk_layernorm_scope == "projection" and tp > 1
    means = 2 if shared else 0
    if model.query_groups >= tp:
        return means
    return means + (model.num_attention_heads + 2 * model.query_groups) * model.head_dim


def more_launches(model: Fields) -> ForwardBackward:
    """Kernels that the host starts more than `planning.time.kernels` says of a layer: that is one with this block."""
    launches = _GATE_LAUNCHES if model.attention_output_gate else NOTHING
    if model.attention_chunk_size is None or not model.has_chunks:
        return launches
    further = -(-model.seq_length // model.attention_chunk_size) - 1
    each = NOTHING.plus(_CHUNK_LAUNCHES, further).plus(_JOINED_LAUNCHES)
    return launches.plus(each, rotated_layers(model))
