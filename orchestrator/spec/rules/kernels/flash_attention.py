"""FlashAttention 4 as the core of attention: what rules it out."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import FEATURES, ruled_out
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule

ATTENTION = "runtime.attention_backend"
_HEAD_DIMS = (64, 128)


def obstacles(job: JobSections) -> Iterator[tuple[str, str]]:
    """Fields that rule it out, each with the reason."""
    model, runtime = job.model, job.runtime
    if not FEATURES["flash_attention"].goes_with(model.family):
        yield "model.architecture", "it is for the layers of a GPT"
    if not model.attention.supports("flash_attention"):
        yield f"model.{model.attention.field}", "it was not measured with this attention"
    if runtime.device == "cpu":
        yield "runtime.device", "its kernels are for GPUs"
    if model.head_dim not in _HEAD_DIMS:
        path = "model.num_attention_heads" if model.kv_channels is None else "model.kv_channels"
        yield path, f"heads are {model.head_dim} wide, and it was measured for 64 and 128"
    if model.attention_dropout > 0:
        yield "model.attention_dropout", "it drops no weights"
    if model.position_embedding_type == "alibi":
        yield "model.position_embedding_type", "it takes no slopes"
    for name in ("sliding_window", "attention_logit_softcapping"):
        if getattr(model, name) is not None:
            yield f"model.{name}", "the layers' own attention does this"
    if job.data.packs:
        yield "data.chat.packing", "it supports no mask that separates conversations"
    if job.model.attends_both_ways_in_images:
        yield "model.vision.type", "it supports no mask that lets the tokens of an image attend to each other"
    yield from ruled_out(job, "flash_attention")
    if job.precision.dtype == "fp32":
        yield "precision.dtype", "it computes in 16 bits"
    if runtime.deterministic:
        yield "runtime.deterministic", "its gradients are not summed in a fixed order"
    if runtime.cpu_offloading_num_layers is not None:
        yield "runtime.cpu_offloading_num_layers", "its saved tensors cannot be offloaded to host memory"


def flash_attention(job: JobSections) -> Iterator[Problem]:
    """FlashAttention 4 that is asked for in words is had, or refused."""
    if job.runtime.attention_backend == "flash":
        for field, reason in obstacles(job):
            message = f"FlashAttention 4 is not possible: {reason}"
            yield Problem(message, (ATTENTION, field), "write attention_backend: auto or fused, or leave it out")


RULES: tuple[Rule, ...] = (flash_attention,)
