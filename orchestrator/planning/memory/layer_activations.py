"""What one layer holds for its backward pass, and what that pass takes beside it. Bytes of one rank.

Counted from the tensors that autograd saves, each storage once (Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4, counts the same for an attention that keeps its scores; ours does
not). A view keeps all of the tensor that it is a view of. Sizes below are in elements: T tokens of a
micro-batch on this rank, h hidden, q and k the widths of this rank's queries and keys, f of its part of the MLP.
"""

from __future__ import annotations

from orchestrator.kernel_selection.experts import groups_experts, joins_expert_mlp
from orchestrator.kernel_selection.fused_kernels import gate_in_one_kernel, rotates_projection
from orchestrator.models.blocks.base import CoreKernels, RankShape
from orchestrator.models.blocks.block import Branch
from orchestrator.models.blocks.registry import MLP
from orchestrator.models.blocks.residual_stream import memory as residual_stream
from orchestrator.models.layers import Layer
from orchestrator.planning.parameters.layer import degrees_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES
from orchestrator.spec.sections.runtime import Layers


def rank_shape(job: JobSpec) -> RankShape:
    """The sizes for one micro-batch of a job."""
    model, degrees = job.model, job.parallelism
    tp, cp, sharded = degrees.tensor_model_parallel_size, degrees.context_parallel_size, degrees.uses_sequence_parallel
    tokens = model.sample_length // cp * job.micro_batch_sequences
    return RankShape(
        width=DTYPE_BYTES[job.precision.dtype],
        tokens=tokens,
        own_tokens=tokens // tp if sharded else tokens,
        positions=model.seq_length // cp,
        hidden=model.hidden_size,
        degrees=degrees_of(degrees),
        cp=cp,
        sequence_parallel=sharded,
    )


def core_kernels(job: JobSpec, layers: Layers, *, is_recomputed: bool) -> CoreKernels:
    """What computes a job's blocks between their matrices. `is_recomputed`: the core of attention."""
    narrow, groups = job.precision.quantization, groups_experts(job, layers)
    operand = None if narrow is None else narrow.element_bytes
    return CoreKernels(
        layers,
        rotates_projection(job, layers),
        job.masks_attention,
        is_recomputed,
        operand,
        groups,
        joins_experts=joins_expert_mlp(job, layers),
        joins_gate=gate_in_one_kernel(job) is not None,
    )


def saved_by_layer(job: JobSpec, layer: Layer, sizes: RankShape, kernels: CoreKernels) -> int:
    """Bytes that one layer keeps from its forward to its backward pass over one micro-batch."""
    layers = kernels.layers
    kept = len(layer) * (sizes.own_tokens * sizes.hidden if job.model.hidden_dropout > 0 else 0)  # masks of one byte
    for block in layer:
        recomputes_norm = "layernorm" in job.runtime.recomputed_modules and _norm_is_recomputed(job, block, layers)
        kept += residual_stream.saved_by_branch(job.model, sizes, recomputes_norm=recomputes_norm)
        kept += 0 if is_recomputed(job, block) else block.memory.saved(job.model, sizes, kernels)
    # In a hybrid, with each attention the norms of two of its layers.
    if layers == "torch" and _counts_mlp(layer):
        kept += residual_stream.saved_in_fp32(job.model, sizes)
    return kept - residual_stream.saved_once(job.model, sizes)


def is_recomputed(job: JobSpec, block: Branch) -> bool:
    """Whether a block keeps nothing of its own: it is computed once more in the backward pass."""
    return block.recomputed_as in job.runtime.recomputed_modules


def _norm_is_recomputed(job: JobSpec, block: Branch, layers: Layers) -> bool:
    """In Transformer Engine's layers most norms with a bias before a linear are a part of that, and not recomputed
    alone.
    """
    is_module = layers == "torch" or block.norm_is_module or not job.model.norm_bias
    return block.norm_is_recomputed and is_module


def _counts_mlp(layer: Layer) -> bool:
    return any(block.counts_mlp for block in layer)


def linear_inputs(job: JobSpec, layer: Layer, sizes: RankShape, kernels: CoreKernels) -> int:
    """Of what a layer keeps, the inputs of linear layers inside its MLP or experts."""
    return sum(block.linear_inputs(job.model, sizes, kernels) for block in layer if not is_recomputed(job, block))


def backward_of_layer(job: JobSpec, layer: Layer, sizes: RankShape, kernels: CoreKernels) -> int:
    """The most that the backward pass of a layer takes beyond everything that was saved when it began, in bytes.

    That is in its MLP or its experts: the attention comes when their part is free again. Only beside an MLP, or alone,
    where it takes no more than one, is its own counted.
    """
    blocks = (*layer, MLP) if _counts_mlp(layer) else layer
    if layer[-1].outweighs_attention:
        blocks = tuple(block for block in layer if block is layer[-1] or block.recomputes_itself)
    return residual_stream.backward(job.model, sizes) + max(
        block.memory.backward(job.model, sizes, kernels)
        + (block.memory.saved(job.model, sizes, kernels) if is_recomputed(job, block) else 0)
        for block in blocks
    )
