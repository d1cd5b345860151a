"""Which of Transformer Engine's kernels compute experts: router, permutation and grouped GEMM."""

from __future__ import annotations

import math
from typing import NamedTuple

from orchestrator.kernel_selection.fused_kernels import adds_in_products
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers

LARGE_PRODUCT = 1 << 33
"""Multiply-adds of a product, of an expert on average, from which on cuBLAS, which the host starts for each expert, is
faster than our kernel of all: measured on an H200 in ten shapes (docs/benchmarks/results.md). It is no constant of a
device (`planning/hardware/`): experts multiply in one format on all GPUs, so that a run may go on with others. In FP8
Transformer Engine casts and multiplies expert by expert, and products below this are over before the host has started
the next: there the second product of an expert decides (`expert_products`).
"""
LARGER_FOR_GRADIENTS = 8
"""How many times as large a product that adds to weight gradients is before cuBLAS is faster. On an H200 our kernel
takes 13 % longer for that of Mixtral 8x7B, 2^38 multiply-adds; cuBLAS 3 to 9 % for that of DeepSeek-V2-Lite, 2^34.
"""
_WIDTH = 8
"""Row widths must be multiples of this. For sums over no multiple of 128 it calls cuBLAS by itself."""
_SHARED_BYTES = 48 << 10
"""Default shared memory of a thread block: the router's kernels do not request more."""
_SUM_BYTES, _SCORE_BYTES, _TOKENS_OF_BLOCK = 8, 4, 4


class Gate(NamedTuple):
    """x · sigmoid(slope · x · (1 + cubic · x²)) · (up + offset), of an x that is clamped to at most `limit`, and an up
    clamped to at most that and, negative, at least.
    """

    slope: float
    cubic: float = 0.0
    limit: float | None = None
    offset: float = 0.0


_GATES = {"swiglu": Gate(1.0), "quick_geglu": Gate(1.702), "geglu": Gate(2 * (2 / math.pi) ** 0.5, 0.044715)}
"""Of activations: SiLU, and two approximations of GeLU, whose (1 + tanh(u)) / 2 is sigmoid(2u)."""


def expert_kernels(job: JobSections, layers: Layers, *, has_permutation: bool, has_router: bool) -> dict[str, bool]:
    """Which of them a run has, in megatron-core's words: of those that the installed Transformer Engine has, what the
    job can have with these layers.
    """
    engines = layers == "transformer_engine"
    return {
        "moe_grouped_gemm": groups_experts(job, layers),
        "moe_permute_fusion": engines and has_permutation and can_fuse_permutation(job),
        "moe_router_fusion": engines and has_router and can_fuse_router(job),
    }


def groups_experts(job: JobSections, layers: Layers) -> bool:
    """Whether the experts of a rank are multiplied together."""
    return layers == "transformer_engine" and job.model.has_experts and job.model.moe_grouped_gemm is not False


def multiplies_in_one_kernel(job: JobSections, layers: Layers) -> bool:
    """Whether a run sets `GROUPED_PRODUCTS`."""
    model = job.model
    inner = model.moe_ffn_size // job.parallelism.expert_tensor_parallel
    has_vectors = model.hidden_size % _WIDTH == 0 and inner % _WIDTH == 0
    return groups_experts(job, layers) and has_vectors and job.launch.groups_products


def adds_weight_gradients(job: JobSections) -> bool:
    """Whether a kernel of ours computes the weight gradients of all experts of a rank, where `multiplies_in_one_kernel`
    and they are not quantized.
    """
    return job.precision.dtype != "fp32"


def joins_expert_mlp(job: JobSections, layers: Layers) -> bool:
    """Whether kernels of ours compute the experts of a rank from the first product to the last: those of 16-bit tensors
    with a gate, where weight gradients are added in their products.
    """
    able = multiplies_in_one_kernel(job, layers) and adds_in_products(job)
    return able and job.model.joins_experts and expert_products(job) in ("bf16", "fp16")


def expert_products(job: JobSections) -> str:
    """Format of routed experts' matrix products, with Transformer Engine's layers: that of the layers, but the dtype
    where a job in FP8 has kernels of ours for them and their second product is not large (with a gate, the first is
    twice as large). In MXFP8 and NVFP4, whose kernels were not timed beside ours, all are narrow.
    """
    model, precision = job.model, job.precision
    allowed = job.runtime.gradient_accumulation_fusion is not False and job.launch.groups_products
    if precision.products != "fp8" or not (model.joins_experts and allowed):
        return precision.products
    inner = model.moe_ffn_size // job.parallelism.expert_tensor_parallel
    return precision.products if is_large_product(job, inner, model.hidden_size) else precision.dtype


def is_large_product(job: JobSections, inputs: float, outputs: float) -> bool:
    """Whether an expert's product with such a matrix of a rank is a `LARGE_PRODUCT`, if all experts get as many tokens:
    those of a micro-batch on all ranks that share out the experts, each as often as it is routed to one.
    """
    model, degrees = job.model, job.parallelism
    parts = degrees.tensor_model_parallel_size if degrees.uses_sequence_parallel else 1
    tokens = job.micro_batch_sequences * model.sample_length / (degrees.context_parallel_size * parts)
    ranks = degrees.expert_tensor_parallel * degrees.expert_model_parallel_size
    return tokens * ranks * model.share_of_expert * inputs * outputs >= LARGE_PRODUCT


def gate_of(model: ModelSpec) -> Gate:
    """That of joined experts."""
    return _GATES[model.activation]._replace(limit=model.activation_func_clamp_value, offset=model.glu_linear_offset)


def can_fuse_permutation(job: JobSections) -> bool:
    """Whether tokens are sorted by expert, and put back, in one kernel each. The plain way has the host wait for how
    many they are. Under `deterministic` it is the plain way: which block sizes are fastest is tried as a run begins.
    """
    return job.model.has_experts and not job.runtime.deterministic


def can_fuse_router(job: JobSections) -> bool:
    """Whether experts are chosen, and the balancing loss taken, in one kernel each: of scores in up to 32 bits that fit
    into a block's memory. The loss is summed up in any order, so not under `deterministic`.
    """
    model = job.model
    if not model.has_experts or job.runtime.deterministic or model.moe_router_dtype == "fp64":
        return False
    if model.moe_router_load_balancing_type == "sinkhorn":
        return False
    if model.moe_router_group_score_topk is not None:  # it takes as many as megatron-core does by itself
        return False
    # The loss of each sequence takes the experts of every sequence of a micro-batch for columns of their own.
    sequences = job.batch.micro_batch_size if "seq_aux_loss" in model.moe_router_load_balancing_type else 1
    scores = _TOKENS_OF_BLOCK * _SCORE_BYTES * (model.expert_count + 2 * model.moe_router_topk)
    return max(scores, _SUM_BYTES * sequences * model.expert_count) <= _SHARED_BYTES
