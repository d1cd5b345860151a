"""Kernels that do several things at once, and what they cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule

JOINED = "runtime.fused_linear_cross_entropy"
FUSED_ACCUMULATION = "runtime.gradient_accumulation_fusion"


def fused_linear_cross_entropy(job: JobSections) -> Iterator[Problem]:
    """The output layer is one with the loss where nothing else asks for logits."""
    if not job.runtime.fused_linear_cross_entropy:
        return
    hint = "leave it out"
    if not FEATURES["joined_loss"].goes_with(job.model.family):
        message = f"fuses the output layer and the loss of a decoder, but architecture is {job.model.architecture}"
        yield Problem(message, (JOINED, "model.architecture"), hint)
    if job.model.final_logit_softcapping is not None:
        message = "leaves no logits to cap, but final_logit_softcapping is set"
        yield Problem(message, (JOINED, "model.final_logit_softcapping"), hint)
    if job.runtime.train_step is not None:
        message = "leaves no logits, but a custom training step may use them"
        yield Problem(message, (JOINED, "runtime.train_step"), hint)


def fused_gradient_accumulation(job: JobSections) -> Iterator[Problem]:
    """The matrices whose products add gradients to buffers have gradients."""
    if job.runtime.gradient_accumulation_fusion is True and job.model.has_adapters:
        message = "is about the gradients of matrices that model.lora freezes"
        yield Problem(message, (FUSED_ACCUMULATION, "model.lora"), "leave it out")


RULES: tuple[Rule, ...] = (fused_linear_cross_entropy, fused_gradient_accumulation)
