"""Kernels that do several things at once: which of them a job has."""

from __future__ import annotations

from typing import Literal

from orchestrator.kernel_selection.tensor_overlap import overlaps_tensor_parallel
from orchestrator.models.blocks.registry import FEATURES, GROUPED_QUERY
from orchestrator.models.layers import mixers_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers


def rotates_projection(job: JobSpec, layers: Layers) -> bool:
    """Whether a kernel of our own rotates queries and keys on a GPU as the projection left them: those that are not
    normalised and have no gates, of heads that are this rank's own, in all layers alike. Torch's layers have ways of
    their own to lay out a sequence in parts, and what has capped scores or sinks.
    """
    model, degrees = job.model, job.parallelism
    own = model.query_groups >= degrees.tensor_model_parallel_size
    in_family = FEATURES["rotated_projection"].goes_with(model.family)
    supports = in_family and model.attention.supports("rotated_projection")
    is_rotated = supports and model.position_embedding_type == "rope"
    plainly = degrees.context_parallel_size == 1 and not model.keeps_scores("torch")
    able = layers == "transformer_engine" or (job.runtime.device != "cpu" and plainly)
    normalized = model.qk_layernorm or model.qk_l2_norm
    by_layer = model.rotates_by_layer or model.rotated_query_factor != 1.0
    is_plain = not (normalized or by_layer or model.attention_output_gate)
    return able and is_rotated and own and is_plain


def fuses_rotation(model: ModelSpec, layers: Layers) -> bool:
    """Whether Transformer Engine rotates queries, and keys, in a kernel each."""
    return layers == "transformer_engine" and model.position_embedding_type == "rope" and model.mrope_section is None


def adds_in_products(job: JobSections) -> bool:
    """Whether the products that compute gradients of weights add them to their buffers, where torch can. By itself only
    on a GPU: the CPU has no product of 16-bit matrices that adds to fp32; and not where the matrices are frozen.
    """
    choice = job.runtime.gradient_accumulation_fusion
    if choice != "auto":
        return choice
    return job.runtime.device != "cpu" and not job.model.has_adapters and job.precision.dtype != "fp32"


def fuses_dropout(model: ModelSpec) -> bool:
    """Whether megatron-core has the bias, dropout and the addition to the residual stream in one kernel: it refuses
    that beside experts with biases that are multiplied together.
    """
    return model.splits_experts


def fuses_activation(model: ModelSpec) -> bool:
    """Whether megatron-core has the bias and the activation in one kernel: SwiGLU's, and outside of experts those of
    the tanh approximation of GeLU that are gated or have a bias.
    """
    if model.activation in ("geglu", "gelu_tanh"):
        return not model.has_experts and (model.is_gated or model.add_bias_linear)
    return model.activation == "swiglu"


def gate_in_one_kernel(job: JobSpec) -> Literal["swiglu", "geglu", "geglu_exact"] | None:
    """The gated activation of dense MLPs that a kernel of our own computes on a GPU, in 16 bits: torch.compile makes
    gradients of megatron-core's that take 1.5 to 2.4 times as long as memory does, and of the exact GeLU it has none.
    Its own add a bias, weight the tokens of experts, and say what is copied to the host.
    """
    model, runtime = job.model, job.runtime
    does_more = model.has_experts or model.add_bias_linear or runtime.cpu_offloading_num_layers is not None
    if does_more or job.precision.dtype == "fp32":
        return None
    return model.activation if model.activation in ("swiglu", "geglu", "geglu_exact") else None


_ALIGNED = 16
"""Bytes at a multiple of which fast kernels of matrix products want rows to begin (cuBLAS documentation, "Tensor Core
Usage")."""


def filling(width: int, element_bytes: int) -> int:
    """With how many zeros rows of an encoder's MLP are filled up for the product over them, so that all begin where
    fast kernels want them: the 3,420 numbers of Qwen2.5-VL's with 4. 0 for most widths.
    """
    return -width % (_ALIGNED // element_bytes)


_WIDEST_NORM = 8192
"""Row that a program of our own holds."""
_TUNED_NORMS = {
    "RMSNorm": frozenset({512, 768, 1024, 2048, 4096, 8192}),
    "LayerNorm": frozenset({768, 1024, 1536, 2048, 2304, 3072, 3840, 4096, 5120, 6144, 8192}),
}
"""Widths up to that for which Transformer Engine has norms of their own (2.11, transformer_engine/common/
normalization): those for any other width take several times as long as memory does.
"""


def normalizes_in_kernels(job: JobSpec, layers: Layers) -> bool:
    """Whether norms of other widths are kernels of our own, before products that do not normalise themselves. Beside
    those Transformer Engine's keep no less for the backward pass, but cast to fewer bits, send what they multiply and
    copy it to the host in the same call.
    """
    runtime, precision = job.runtime, job.precision
    has_others = job.model.family.is_encoder_decoder or job.model.transformer_block_type == "post_ln"
    is_plain = not has_others and all(mixer is GROUPED_QUERY for mixer in mixers_of(job.model))
    is_plain = is_plain and "layernorm" not in runtime.recomputed_modules
    joins = precision.quantization is not None or overlaps_tensor_parallel(job, layers)
    able = layers == "transformer_engine" and precision.dtype != "fp32" and runtime.cpu_offloading_num_layers is None
    return able and is_plain and not joins


def lacks_tuned_norm(normalization: str, width: int) -> bool:
    """Whether Transformer Engine has no norm of its own for this width, and we have one."""
    return width <= _WIDEST_NORM and width not in _TUNED_NORMS[normalization]
