"""Which models have norms without biases, or elsewhere than before attention and MLP, and factors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.models.blocks.rules import by_family

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import ExpertFields, Fields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "logit_scale")
NORMS, PARALLEL = "model.transformer_block_type", "model.parallel_residual"
NORM_BIAS, EMBEDDING = "model.norm_bias", "model.embedding_norm"


def norm_bias(job: Job[Fields]) -> Iterator[Problem]:
    """A LayerNorm does without its bias."""
    model = job.model
    if model.norm_bias:
        return
    yield from by_family(job, "norms_without_bias", NORM_BIAS)
    if model.normalization != "LayerNorm":
        message = f"is for LayerNorm: {model.normalization} has no bias"
        yield Problem(message, (NORM_BIAS, "model.normalization"), "leave it out")


def embedding_norm(job: Job[Fields]) -> Iterator[Problem]:
    """A norm of the embeddings is in the place of that before the first attention of an encoder."""
    model = job.model
    if not model.embedding_norm:
        return
    yield from by_family(job, "embedding_norm", EMBEDDING)
    if model.transformer_block_type != "pre_ln":
        message = f"is for norms before attention, but transformer_block_type is {model.transformer_block_type}"
        yield Problem(message, (EMBEDDING, NORMS), "leave it out")


def output_norms(job: Job[Fields]) -> Iterator[Problem]:
    """Norms of what attention and MLP give are for decoders whose layers have both."""
    if job.model.normalizes_outputs:
        yield from by_family(job, "output_norms", NORMS, job.model.transformer_block_type)


def multipliers(job: Job[Fields]) -> Iterator[Problem]:
    """Factors are for decoders, and each is there once."""
    model = job.model
    if not model.has_multipliers:
        return
    for name in MULTIPLIERS:
        if getattr(model, name) != 1.0:
            yield from by_family(job, "multipliers", f"model.{name}")
    if model.embedding_multiplier != 1.0 and model.scale_embeddings:
        message = "scale_embeddings multiplies embeddings by √h, and embedding_multiplier by another factor"
        yield Problem(message, ("model.embedding_multiplier", "model.scale_embeddings"), "write one of them")


def parallel_residual(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Layers with an attention and an MLP add both to what they read through norms, unscaled."""
    model, modules = job.model, job.runtime.recompute_modules or ()
    if model.parallel_residual is None:
        return
    yield from by_family(job, "parallel_residual", PARALLEL)
    if model.transformer_block_type != "pre_ln":
        message = (
            f"has norms before attention and MLP alone, but transformer_block_type is {model.transformer_block_type}"
        )
        yield Problem(message, (PARALLEL, NORMS), "leave one of them out")
    if model.residual_multiplier != 1.0:
        message = "no published model scales what is added in parallel"
        yield Problem(message, (PARALLEL, "model.residual_multiplier"), "leave one of them out")
    if model.has_experts:
        message = "experts in parallel with attention are not in this version"
        yield Problem(message, (PARALLEL, "model.num_experts"), "leave one of them out")
    if model.parallel_residual == "one_norm" and "layernorm" in modules:
        message = "layernorm recomputes a norm for attention and one for the MLP, but one_norm has one for both"
        yield Problem(message, ("runtime.recompute_modules", PARALLEL), "leave layernorm out")


TENSOR_PARALLEL: tuple[Rule, ...] = ()
RULES: RulesByTopic = {"variants": (norm_bias, embedding_norm, output_norms, parallel_residual, multipliers)}
