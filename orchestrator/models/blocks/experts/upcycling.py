"""Experts that begin as the MLP of a dense model (sparse upcycling, Komatsuzaki et al. 2022): each is a copy of it, or
so many narrower ones share a copy out (He et al. 2024, virtual groups).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import ExpertFields
    from orchestrator.models.blocks.protocols import Rule

UPCYCLE, PRETRAINED = "checkpoint.upcycle", "checkpoint.pretrained"
EXPERTS, TOPK, WIDTH = "model.num_experts", "model.moe_router_topk", "model.moe_ffn_hidden_size"


def granularity(model: ExpertFields) -> int:
    """How many experts a copy of the dense MLP, whose width is `ffn_hidden_size`, is shared out over."""
    return model.ffn_size // model.moe_ffn_size


def output_factor(model: ExpertFields) -> float:
    """What the second matrix of each expert is multiplied by, so that what a token's experts add up to is the output of
    the dense MLP. Their weights add up to 1, unless they are those of a softmax over all experts: then about to the
    chosen ones' share of all.
    """
    share = 1.0
    if model.moe_router_score_function == "softmax" and model.moe_router_pre_softmax:
        share = model.moe_router_topk / model.expert_count
    return granularity(model) / (share * (model.moe_router_topk_scaling_factor or 1.0))


def upcycled_weights(job: Job[ExpertFields]) -> Iterator[Problem]:
    """There are experts, and dense weights for them to begin with; what is new is trained."""
    if not job.checkpoint.upcycle:
        return
    model = job.model
    if not model.has_experts:
        message = "starts experts from a dense model, but num_experts is not set"
        yield Problem(message, (UPCYCLE, EXPERTS), "write num_experts, or leave it out")
    if job.checkpoint.pretrained is None:
        message = "starts experts from a dense model, but there is no checkpoint.pretrained"
        yield Problem(message, (UPCYCLE, PRETRAINED), "write checkpoint.pretrained: RUN, or leave it out")
    if model.has_adapters:
        message = "the router of upcycled experts starts at random, and adapters would leave it so"
        yield Problem(message, (UPCYCLE, "model.lora"), "train all weights first, and adapters from that run")
    if not model.splits_experts:
        message = "biases of experts are not started from those of a dense MLP"
        yield Problem(message, (UPCYCLE, "model.add_bias_linear"), "write add_bias_linear: false")


def upcycled_routing(job: Job[ExpertFields]) -> Iterator[Problem]:
    """What a token's experts add up to is known before the training: their weights' sum, and nothing beside them."""
    model = job.model
    if not (job.checkpoint.upcycle and model.has_experts):
        return
    if model.shared_expert_size:
        message = "a shared expert would add to what the copies of the dense MLP already give"
        yield Problem(message, (UPCYCLE, "model.moe_shared_expert_intermediate_size"), "leave the shared expert out")
    if model.moe_apply_probs_on_input:
        message = "weighted inputs change what an activation computes, and no factor makes up for it"
        yield Problem(message, (UPCYCLE, "model.moe_apply_probs_on_input"), "leave it out")
    if model.moe_router_load_balancing_type == "sinkhorn":
        message = "the weights that sinkhorn gives experts add up to no known number"
        hint = "write aux_loss, seq_aux_loss or global_aux_loss"
        yield Problem(message, (UPCYCLE, "model.moe_router_load_balancing_type"), hint)
    elif model.moe_router_score_function == "sigmoid" and model.moe_router_topk == 1:
        message = "the sigmoid score of one expert is no known number, as the sum of several is"
        yield Problem(message, (UPCYCLE, TOPK, "model.moe_router_score_function"), "choose more experts, or softmax")


def upcycled_widths(job: Job[ExpertFields]) -> Iterator[Problem]:
    """The experts of a token are whole copies of the dense MLP."""
    model = job.model
    if not (job.checkpoint.upcycle and model.has_experts):
        return
    width, whole = model.moe_ffn_size, model.ffn_size
    if whole % width:
        message = (
            f"experts share out an MLP of the dense model: ffn_hidden_size / moe_ffn_hidden_size = {whole} / {width}"
        )
        yield Refusal(f"{message} is not whole", (WIDTH, UPCYCLE), offers=(divisors_of(whole, WIDTH, width),))
        return
    parts, groups = granularity(model), model.moe_router_num_groups
    for path, count in ((EXPERTS, model.expert_count), (TOPK, model.moe_router_topk)):
        if count % parts:
            name = path.rpartition(".")[2]
            message = (
                f"{parts} experts share out each copy of the dense MLP: {name} / {parts} = {quotient(count, parts)}"
            )
            yield Refusal(f"{message} is not whole", (path, UPCYCLE), offers=(multiples_of(parts, path, count),))
    if groups is not None and model.expert_count // groups % parts:
        message = f"{parts} experts share out each copy of the dense MLP, and groups of experts would cut it"
        yield Problem(message, ("model.moe_router_num_groups", UPCYCLE), "fewer groups")


RULES: tuple[Rule, ...] = (upcycled_weights, upcycled_routing, upcycled_widths)
