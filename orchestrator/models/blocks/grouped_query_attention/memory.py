"""What grouped-query attention keeps for its backward pass, between its matrices. Bytes of one rank and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orchestrator.models.blocks.base import FP32, CoreKernels, RankShape, norm_statistics
from orchestrator.models.blocks.grouped_query_attention.parameters import rotated_layers

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


class HeadSizes(NamedTuple):
    """Heads of a rank, and bytes of what they take and give."""

    heads: int
    groups: int
    """Key/value heads."""
    query: int
    """The queries, and the attention's output."""
    key: int
    """The keys, and the values."""
    projection: int
    """The projection's output, of which the attention's inputs are views. Where several ranks share a key/value head,
    each gathers the projections of all of them and takes its part."""


def head_sizes(model: Fields, shape: RankShape) -> HeadSizes:
    """The sizes of this rank's heads."""
    heads, groups = model.num_attention_heads // shape.tp, max(model.query_groups // shape.tp, 1)
    is_own = model.query_groups >= shape.tp
    gates = heads if model.attention_output_gate else 0
    projected = heads + gates + 2 * groups if is_own else model.num_attention_heads + 2 * model.query_groups
    of_a_head = shape.tokens * model.head_dim * shape.width
    return HeadSizes(heads, groups, heads * of_a_head, groups * of_a_head, projected * of_a_head)


def saved(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """From the projection's output to the second linear's input."""
    share = rotated_layers(model)  # the mean over the layers
    plain = sum(
        part * _plain(model, shape, kernels, rotated) for rotated, part in ((True, share), (False, 1.0 - share))
    )
    return round(plain) + _of_variants(model, shape, kernels)


def _plain(model: Fields, shape: RankShape, kernels: CoreKernels, rotated: bool) -> int:
    sizes, normed = head_sizes(model, shape), model.qk_layernorm or (rotated and model.qk_l2_norm)
    is_tempered = not rotated and model.attention_temperature_scale is not None
    # Queries of several heads per group do not lie evenly in the projection's output, so they are copied out of it.
    copied = sizes.groups > 1 and sizes.heads > sizes.groups
    kept = sizes.query + (0 if kernels.is_recomputed else shape.tokens * sizes.heads * FP32)  # output, log-sum-exp
    if rotated and model.has_chunks and not kernels.is_recomputed:
        kept += sizes.query  # the output of each chunk, and of all for the next linear
    if normed:
        rows = 2 if model.qk_layernorm_scope == "projection" else sizes.heads + sizes.groups
        kept += shape.tokens * rows * (norm_statistics(model) if model.qk_layernorm else FP32)
    whole = 0 if kernels.is_recomputed else _whole_sequence(shape, sizes)
    if kernels.rotates_projection:  # and stays where it is, or goes to tensors of its own as a whole
        return kept + sizes.projection
    if kernels.layers == "torch":
        kept += whole
        kept += 0 if whole and (rotated or normed) else sizes.projection  # the values are a view of it
        if rotated or normed:
            kept += sizes.query + sizes.key
        if is_tempered or (copied and (normed or not rotated)):
            kept += sizes.query  # saved by the norm, or by the attention itself
        if normed and model.qk_layernorm_scope == "projection" and sizes.groups > 1:
            kept += sizes.key + (0 if copied else sizes.query)  # its heads are laid out side by side
        if rotated:
            # Cosines and sines are made anew by every layer, for queries and for keys.
            kept += 4 * shape.positions * rotary_width(model) * shape.width
        return kept
    if normed:
        kept += sizes.query + sizes.key  # its norms take evenly laid out copies
    if rotated or normed:
        kept += sizes.query + sizes.key
        # Its attention copies values that do not lie as the keys do; recomputed, it keeps what they are a view of.
        return kept + (sizes.projection if kernels.is_recomputed else sizes.key)
    return kept + sizes.projection + (sizes.query if is_tempered or (copied and kernels.is_recomputed) else 0)


def _whole_sequence(shape: RankShape, sizes: HeadSizes) -> int:
    """Under context parallelism torch's layers keep the keys and values of the whole sequence, gathered, and the
    attention's output twice: as its two halves, and whole for the next linear. Recomputed, they keep neither.
    """
    return 2 * shape.cp * sizes.key + sizes.query if shape.cp > 1 else 0


def _of_variants(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """What gates, caps, masks and norms that multiply by 1 + weight keep more."""
    sizes, kept = head_sizes(model, shape), 0
    if model.attention_output_gate:  # the gated output, and the gates in fp32
        kept += sizes.query + shape.tokens * sizes.heads * model.head_dim * FP32
    keeps = _keeps_scores(model, shape, kernels)
    if keeps and not kernels.is_recomputed:
        rows = shape.tokens * sizes.heads
        kept += rows * model.seq_length * _of_a_score(model, shape) - rows * FP32  # and no log-sum-exp
        kept += rows * FP32 if model.has_sinks else 0  # the softmax of the sink
    if (keeps or kernels.masked) and not kernels.is_recomputed and sizes.groups < sizes.heads:
        kept += 2 * sizes.query - 2 * sizes.key  # keys and values for each query head
    if model.apply_layernorm_1p and kernels.layers == "torch" and model.qk_layernorm:
        copies = 0 if shape.width == FP32 else FP32 // shape.width  # in fp32, of their input
        kept += (sizes.query + sizes.key) * copies + 2 * model.head_dim * FP32
    return kept


def backward(model: Fields, shape: RankShape, kernels: CoreKernels) -> int:
    """The most that its backward pass takes beyond what was saved: where scores are kept above all the gradient of the
    softmax. Else less than an MLP's, which is free again by then.
    """
    if not _keeps_scores(model, shape, kernels):
        return 0
    sizes = head_sizes(model, shape)
    scores = shape.tokens * sizes.heads * model.seq_length
    again = _of_a_score(model, shape) if kernels.is_recomputed else 0
    return 3 * shape.stream + sizes.query + scores * (FP32 + again)


def rotary_width(model: Fields) -> int:
    """Rotated elements of a head."""
    return int(model.head_dim * model.rotary_percent) if model.rotary_percent < 1 else model.head_dim


def _keeps_scores(model: Fields, shape: RankShape, kernels: CoreKernels) -> bool:
    return model.keeps_scores(kernels.layers, in_parts=shape.cp > 1 or kernels.masked)


def _of_a_score(model: Fields, shape: RankShape) -> int:
    """Bytes that are kept of each score: capped, and the softmax in fp32 and in the activations' format."""
    capped = shape.width if model.attention_logit_softcapping is not None else 0
    return FP32 + capped + (shape.width if shape.width < FP32 else 0)
