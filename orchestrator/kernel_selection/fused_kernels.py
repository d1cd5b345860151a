"""Kernels that do several things at once: which of them a job has."""

from __future__ import annotations

from orchestrator.models.blocks.registry import FEATURES
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
    is_plain = not (normalized or model.rotates_by_layer or model.attention_output_gate or model.mrope_section)
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
