"""What goes with latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, multiples_of
from orchestrator.models.blocks.grouped_query_attention.fields import GroupedQueryAttentionSpec
from orchestrator.models.blocks.latent_attention.fields import LatentAttentionSpec
from orchestrator.models.blocks.rules import by_switch

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.latent_attention.model_fields import LatentFields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

KV_RANK, ROTATED = "model.kv_lora_rank", "model.qk_pos_emb_head_dim"
POSITIONS = "model.position_embedding_type"
_NOT_ITS_OWN = {
    "num_query_groups": "each head has keys and values of its own",
    "kv_channels": "heads are qk_head_dim + qk_pos_emb_head_dim and v_head_dim wide",
    "rotary_percent": "the rotated part of a head is qk_pos_emb_head_dim",
    "softmax_scale": "scores are scaled by the width of a head, and by rope_scaling.mscale_all_dim",
    "add_qkv_bias": "its projections have no biases",
    "attention_output_gate": "its heads have no gates",
    "sliding_window": "every token attends to all before it",
    "attention_logit_softcapping": "its scores are not capped",
    "attention_temperature_scale": "its queries have the same temperature at every position",
    "attention_chunk_size": "every token attends to all before it",
    "qk_l2_norm": "its latents are normalised instead",
}
"""Fields of grouped-query attention that it does not have, with the reason."""


def latents_are_there(job: Job[LatentFields]) -> Iterator[Problem]:
    """What is said of latents is said of a model that has some."""
    yield from by_switch(job, LatentAttentionSpec, "kv_lora_rank", "latent attention")


def fields_of_other_attention(job: Job[LatentFields]) -> Iterator[Problem]:
    """Latent attention has widths, scores and projections of its own."""
    model = job.model
    if not model.has_latent_attention:
        return
    for name, reason in _NOT_ITS_OWN.items():
        value = getattr(model, name)
        if name == "num_query_groups" and value == model.num_attention_heads:
            continue
        if value != GroupedQueryAttentionSpec.model_fields[name].default:
            message = f"is not for latent attention: {reason}"
            yield Problem(message, (f"model.{name}", KV_RANK), "leave it out")


def rotated_part(job: Job[LatentFields]) -> Iterator[Problem]:
    """Positions are rotary, and turn pairs of the channels that are for them."""
    model = job.model
    if not model.has_latent_attention:
        return
    if model.position_embedding_type != "rope":
        kind = model.position_embedding_type
        message = f"latent attention has rotary positions, but position_embedding_type is {kind}"
        yield Problem(message, (POSITIONS, KV_RANK), "write rope")
    width = model.qk_pos_emb_head_dim
    if width % 2:
        message = f"the rotated part of a head must be even: {width}"
        yield Refusal(message, (ROTATED,), numbers=(width,), offers=(multiples_of(2, ROTATED, width),))


def scaled_part(job: Job[LatentFields]) -> Iterator[Problem]:
    """No published model has latents and a factor for each pair of channels."""
    scaling = job.model.rope_scaling
    if job.model.has_latent_attention and scaling is not None and scaling.type == "longrope":
        yield Problem("longrope is not in latent attention", ("model.rope_scaling.type", KV_RANK), "write yarn")


def untried_with_latents(job: Job[LatentFields]) -> Iterator[Problem]:
    """FP8, FP4 and offloading go by the layers of Transformer Engine, and were not tried on a GPU."""
    if not job.model.has_latent_attention:
        return
    tried = {
        "precision.fp8": job.precision.fp8 is None,
        "precision.fp4": job.precision.fp4 is None,
        "runtime.cpu_offloading_num_layers": job.runtime.cpu_offloading_num_layers is None,
    }
    for path, is_fine in tried.items():
        if not is_fine:
            yield Problem("was not tried with latent attention", (path, KV_RANK), "leave it out")


TENSOR_PARALLEL: tuple[Rule, ...] = ()
"""Its heads are shared out as those of grouped-query attention, whose rule says how."""
RULES: RulesByTopic = {
    "positions": (rotated_part, scaled_part),
    "variants": (latents_are_there, fields_of_other_attention, untried_with_latents),
}
