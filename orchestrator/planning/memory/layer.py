"""What one transformer layer holds for its backward pass, and what that pass takes beside it. Bytes of one rank.

Counted from the tensors that autograd saves, each storage once (Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4, counts the same for an attention that keeps its scores; ours does
not). A view keeps all of the tensor that it is a view of. Sizes below are in elements: T tokens of a
micro-batch on this rank, h hidden, q and k the widths of this rank's queries and keys, f of its part of the MLP.
"""

from __future__ import annotations

from orchestrator.kernel_selection.fused_kernels import rotates_projection
from orchestrator.models.blocks.base import FP32, CoreKernels, RankShape, norm_statistics
from orchestrator.models.blocks.mlp import memory as mlp
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
        tp=tp,
        cp=cp,
        sequence_parallel=sharded,
    )


def core_kernels(job: JobSpec, layers: Layers, *, is_recomputed: bool) -> CoreKernels:
    """What computes a job's attention between its matrices."""
    return CoreKernels(layers, rotates_projection(job, layers), job.data.packs, is_recomputed)


def saved_by_layer(
    job: JobSpec, sizes: RankShape, layers: Layers, *, selective: bool, experts: int | None = None
) -> int:
    """Bytes that one layer keeps from its forward to its backward pass over one micro-batch.

    `selective`: the attention is recomputed. `experts`: what its experts keep, where it has some.
    """
    statistics = norm_statistics(job.model)
    norms = 2 * (2 * sizes.stream + sizes.own_tokens * statistics)  # input, statistics, and output for the linear
    if "layernorm" in job.runtime.recomputed_modules and layers == "torch":  # a part of the linear in the other
        norms = 2 * sizes.stream
    elif "layernorm" in job.runtime.recomputed_modules and experts is not None:  # the one before experts is not
        norms -= sizes.stream + sizes.own_tokens * statistics
    dropped = 2 * sizes.own_tokens * sizes.hidden if job.model.hidden_dropout > 0 else 0  # masks of one byte
    of_mlp = mlp.saved(job.model, sizes) if experts is None else experts
    if ("mlp" if experts is None else "moe") in job.runtime.recomputed_modules:
        of_mlp = 0
    kernels = core_kernels(job, layers, is_recomputed=selective)
    attention = job.model.attention.memory.saved(job.model, sizes, kernels)
    return norms + _of_large_weights(job, sizes, layers) + attention + of_mlp + dropped


def _of_large_weights(job: JobSpec, sizes: RankShape, layers: Layers) -> int:
    """Torch's norms that multiply by 1 + weight compute on, and keep, fp32 copies of that and of their input."""
    if not job.model.apply_layernorm_1p or layers != "torch":
        return 0
    return 2 * (sizes.stream * (FP32 - sizes.width) // sizes.width + sizes.hidden * FP32)


def backward_of_layer(job: JobSpec, sizes: RankShape, layers: Layers) -> int:
    """The most that the backward pass of a layer takes beyond everything that was saved when it began, in bytes.

    That is in its MLP; the attention comes when the MLP's part is free again.
    """
    again = mlp.saved(job.model, sizes) if "mlp" in job.runtime.recomputed_modules else 0
    engine, in_fp8 = layers == "transformer_engine", job.precision.fp8 is not None
    of_mlp = again + mlp.backward(job.model, sizes, engine=engine, in_fp8=in_fp8)
    kernels = core_kernels(job, layers, is_recomputed=job.runtime.recompute_granularity == "selective")
    attention = job.model.attention.memory.backward(job.model, sizes, kernels)
    return max(of_mlp, attention)
