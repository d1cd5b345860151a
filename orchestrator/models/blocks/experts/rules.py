"""Mixture of experts: what goes with it, and how experts are spread over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.paths import CP, DP, EP, GPUS, TP
from orchestrator.fields.refusals import Refusal, Unavailable, divisors_of, multiples_of, quotient, ratio
from orchestrator.models.blocks.experts.fields import ExpertsSpec
from orchestrator.models.blocks.experts.upcycling import granularity
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.models.blocks.rules import by_switch
from orchestrator.models.layer_pattern import EXPERT_LETTER, layer_pattern

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import ExpertFields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

EXPERTS, ETP = "model.num_experts", "parallelism.expert_tensor_parallel_size"
PER_TOKEN = "batch.calculate_per_token_loss"
TOPK, COEFF, BALANCING = "model.moe_router_topk", "model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"
EXPERT_WIDTH, SHARED = "model.moe_ffn_hidden_size", "model.moe_shared_expert_intermediate_size"
UPCYCLE, PRETRAINED = "checkpoint.upcycle", "checkpoint.pretrained"
CAPACITY = "model.moe_expert_capacity_factor"
SCORES, EXPERT_BIAS = "model.moe_router_score_function", "model.moe_router_enable_expert_bias"
BIAS_RATE = "model.moe_router_bias_update_rate"
SCALING = "model.moe_router_topk_scaling_factor"
PROBS_ON_INPUT = "model.moe_apply_probs_on_input"
GROUPS, GROUP_TOPK = "model.moe_router_num_groups", "model.moe_router_group_topk"
GROUP_SCORE = "model.moe_router_group_score_topk"
PATTERN = "model.hybrid_override_pattern"
BIAS, GROUPED, LORA = "model.add_bias_linear", "model.moe_grouped_gemm", "model.lora"


def experts_are_there(job: Job[ExpertFields]) -> Iterator[Problem]:
    """What is said of experts is said of a model that has some."""
    if job.model.has_experts:
        return
    yield from by_switch(job, ExpertsSpec, "num_experts", "a model with experts")
    for path, size in ((EP, job.parallelism.expert_model_parallel_size), (ETP, _written_tensor_parallel(job))):
        if size > 1:
            name = path.rpartition(".")[2]
            yield Problem(f"{name} {size} spreads experts, but the model has none", (path, EXPERTS), "write 1")


def _written_tensor_parallel(job: Job[ExpertFields]) -> int:
    return job.parallelism.expert_tensor_parallel_size or 1


def decoder_experts(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Only the decoder has layers with experts."""
    if job.model.has_experts and not FEATURES["experts"].goes_with(job.model.family):
        names = " and ".join(each.name for each in FEATURES["experts"].families)
        message = f"experts are for architecture: {names}, but this is {job.model.family.name}"
        yield Problem(message, (EXPERTS, "model.architecture"), "leave num_experts out")


def layers_with_experts(job: Job[ExpertFields]) -> Iterator[Problem]:
    """A list says of every layer whether it has experts, and some have."""
    frequency, layers = job.model.moe_layer_freq, job.model.num_layers
    if job.model.family.is_hybrid:
        yield from _letters_of_experts(job)
        return
    if not isinstance(frequency, list):
        return
    paths = ("model.moe_layer_freq", "model.num_layers")
    if len(frequency) != layers:
        message = f"moe_layer_freq has {len(frequency)} entries for num_layers {layers}"
        yield Problem(message, paths, "write one for each layer, or a number")
    elif 1 not in frequency:
        yield Problem(
            "no layer has experts", (*paths, EXPERTS), "write 1 for at least one layer, or leave num_experts out"
        )


def _letters_of_experts(job: Job[ExpertFields]) -> Iterator[Problem]:
    model = job.model
    if model.moe_layer_freq != ExpertsSpec.model_fields["moe_layer_freq"].default:
        message = "the letters E of a hybrid's pattern say which layers have experts"
        yield Problem(message, ("model.moe_layer_freq", PATTERN), "leave it out")
    if model.has_experts and not any(model.moe_layers):
        message = f"no layer has experts: {layer_pattern(model)}"
        yield Problem(message, (EXPERTS, PATTERN), "write hybrid_override_pattern with an E, or leave num_experts out")
    if not model.has_experts and EXPERT_LETTER in layer_pattern(model):
        message = f"layers with experts (E) need num_experts: {layer_pattern(model)}"
        yield Problem(message, (PATTERN, EXPERTS), "write num_experts")


def chosen_experts(job: Job[ExpertFields]) -> Iterator[Problem]:
    """A token is routed to some of the experts; alone, the chosen one needs a weight that is not always 1."""
    model = job.model
    if not model.has_experts:
        return
    if model.moe_router_topk_scaling_factor is not None and model.moe_router_load_balancing_type == "sinkhorn":
        message = "the weights that sinkhorn gives are not scaled"
        yield Problem(message, (SCALING, BALANCING), "leave out one of them")
    if model.moe_router_topk > model.expert_count:
        message = f"moe_router_topk {model.moe_router_topk} > num_experts {model.num_experts}"
        yield Problem(message, (TOPK, EXPERTS), f"at most {model.num_experts}")
    if (
        model.moe_router_topk == 1
        and model.moe_router_score_function == "softmax"
        and not model.moe_router_pre_softmax
        and model.moe_router_load_balancing_type != "sinkhorn"
    ):
        message = "the softmax over one chosen expert is always 1, so the router would learn nothing"
        yield Problem(message, (TOPK, "model.moe_router_pre_softmax"), "write moe_router_pre_softmax: true")


def weighted_inputs(job: Job[ExpertFields]) -> Iterator[Problem]:
    """megatron-core weights the inputs of one expert per token."""
    model = job.model
    if model.has_experts and model.moe_apply_probs_on_input and model.moe_router_topk != 1:
        message = f"weights the inputs of one expert per token, but moe_router_topk is {model.moe_router_topk}"
        yield Problem(message, (PROBS_ON_INPUT, TOPK), "write moe_router_topk: 1, or leave it out")


def expert_groups(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Groups have equally many experts; those that a token may choose from have as many as it chooses."""
    model = job.model
    groups, chosen, score = model.moe_router_num_groups, model.moe_router_group_topk, model.moe_router_group_score_topk
    if not model.has_experts:
        return
    if groups is None or chosen is None:
        given = {GROUPS: groups, GROUP_TOPK: chosen, GROUP_SCORE: score}
        for path in (path for path, value in given.items() if value is not None):
            message = f"{path.rpartition('.')[2]} is for experts in groups, which need both the groups and the choice"
            yield Problem(message, (path, GROUPS, GROUP_TOPK), "write both, or leave it out")
        return
    experts = model.expert_count
    if experts % groups:
        message = f"num_experts / moe_router_num_groups must be whole: {quotient(experts, groups)}"
        yield Refusal(
            message, (GROUPS, EXPERTS), numbers=(experts, groups), offers=(divisors_of(experts, GROUPS, groups),)
        )
        return
    if chosen > groups:
        message = f"moe_router_group_topk {chosen} > moe_router_num_groups {groups}"
        yield Problem(message, (GROUP_TOPK, GROUPS), f"at most {groups}")
    elif model.moe_router_topk > (available := chosen * experts // groups):
        message = f"moe_router_topk {model.moe_router_topk} > {available} experts of {chosen} groups"
        yield Problem(message, (TOPK, GROUP_TOPK, GROUPS), f"at most {available}")
    elif not 1 <= model.group_score_topk <= experts // groups:
        message = f"a group of {experts // groups} experts is chosen by the sum of {model.group_score_topk} scores"
        yield Problem(message, (GROUP_SCORE, GROUPS, GROUP_TOPK), f"write a number from 1 to {experts // groups}")
    if model.moe_router_load_balancing_type == "sinkhorn":
        message = "sinkhorn assigns tokens to all experts, whatever their group"
        yield Problem(message, (GROUPS, BALANCING), "leave out one of them")


def _says_rate(model: ExpertFields) -> bool:
    return bool(model.moe_router_bias_update_rate != ExpertsSpec.model_fields["moe_router_bias_update_rate"].default)


def expert_bias(job: Job[ExpertFields]) -> Iterator[Problem]:
    """The bias that balances is added to sigmoid scores, between 0 and 1."""
    model = job.model
    if not model.has_experts:
        return
    if not model.moe_router_enable_expert_bias:
        if _says_rate(model):
            message = "is the rate of a bias that moe_router_enable_expert_bias would turn on"
            yield Problem(message, (BIAS_RATE, EXPERT_BIAS), "write moe_router_enable_expert_bias: true")
    elif model.moe_router_score_function != "sigmoid":
        message = f"the bias of experts is for sigmoid scores, but they are {model.moe_router_score_function}"
        yield Problem(message, (EXPERT_BIAS, SCORES), "write moe_router_score_function: sigmoid")
    elif model.moe_router_load_balancing_type == "sinkhorn":
        message = "sinkhorn balances by itself, and takes no bias"
        yield Problem(message, (EXPERT_BIAS, BALANCING), "leave out one of them")


def shared_expert_gate(job: Job[ExpertFields]) -> Iterator[Problem]:
    """What a gate weights is there."""
    model = job.model
    if model.has_experts and model.moe_shared_expert_gate and not model.shared_expert_size:
        message = "is the gate of a shared expert, but the model has none"
        hint = "write moe_shared_expert_intermediate_size, or leave it out"
        yield Problem(message, ("model.moe_shared_expert_gate", SHARED), hint)


def balancing(job: Job[ExpertFields]) -> Iterator[Problem]:
    """A load-balancing loss has a kind, and dropping tokens goes with one."""
    model = job.model
    kind = model.moe_router_load_balancing_type
    balances = model.has_experts and (model.auxiliary_losses or model.moe_z_loss_coeff)
    if balances and job.has_per_token_loss:
        field = "data.chat" if job.data.has_conversations else "data.eod_mask_loss"
        message = "with a loss per token megatron-core weighs the losses that balance experts by the layout"
        hint = f"write {PER_TOKEN}: false, or leave the coefficients of aux and z loss out"
        yield Problem(message, (PER_TOKEN, field, COEFF, "model.moe_z_loss_coeff"), hint)
    if not model.has_experts:
        return
    weights = model.moe_aux_loss_coeff
    counts = [len(each) if isinstance(each, list) else None for each in (kind, weights)]
    if counts[0] != counts[1] or (isinstance(kind, list) and len(set(kind)) < len(kind)):
        message = "each of several balancing losses has a weight, and is there once"
        yield Problem(message, (COEFF, BALANCING), "write lists of equal length, or one loss and one weight")
        return
    if kind not in ("none", "sinkhorn"):
        return
    if weights != 0:
        message = f"is the weight of an auxiliary loss, but moe_router_load_balancing_type is {kind}"
        hint = "write aux_loss, seq_aux_loss or global_aux_loss, or leave the coefficient out"
        yield Problem(message, (COEFF, BALANCING), hint)
    if model.moe_expert_capacity_factor is not None and kind == "sinkhorn":
        message = "an expert's capacity works with an auxiliary loss or none, not with sinkhorn"
        yield Problem(message, (CAPACITY, BALANCING), "leave out one of them")


def experts_by_expert_parallel(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Each expert-parallel rank holds equally many experts."""
    experts, ep = job.model.expert_count, job.parallelism.expert_model_parallel_size
    if experts % ep:
        message = f"num_experts / EP must be whole: {quotient(experts, ep)}"
        offers = (divisors_of(experts, EP, ep), multiples_of(ep, EXPERTS, experts))
        yield Refusal(message, (EP, EXPERTS), numbers=(experts, ep), offers=offers)


def expert_ranks(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Experts share out the ranks of a stage: ETP · EP divides TP · CP · DP."""
    parallelism = job.parallelism
    etp, ep = parallelism.expert_tensor_parallel, parallelism.expert_model_parallel_size
    if not job.model.has_experts or etp * ep == 1:
        return
    world, pp = job.world_size, parallelism.pipeline_model_parallel_size
    if world % parallelism.model_parallel_size or world < parallelism.model_parallel_size:
        raise Unavailable("data_parallel_size")
    stage = world // pp
    if stage % (etp * ep) == 0:
        return
    message = (
        f"experts are spread over the ranks of a stage: TP · CP · DP / (ETP · EP) = {stage} / ({etp} · {ep}) "
        f"= {ratio(stage, etp * ep)} is not whole"
    )
    offers = (divisors_of(stage, EP, ep), divisors_of(stage, ETP, etp))
    yield Refusal(message, (EP, ETP, DP, GPUS, TP, CP), numbers=(stage, etp, ep), offers=offers)


def expert_tensor_parallel(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Experts are split over some of the tensor-parallel ranks, evenly."""
    etp, tp = job.parallelism.expert_tensor_parallel, job.parallelism.tensor_model_parallel_size
    if job.model.has_experts and tp % etp:
        message = f"TP / ETP must be whole: {quotient(tp, etp)}"
        yield Problem(message, (ETP, TP), "leave expert_tensor_parallel_size out, or write 1 for whole experts")


def experts_with_tensor_parallel(job: Job[ExpertFields]) -> Iterator[Problem]:
    """With TP > 1 each rank routes its own part of the sequence: megatron-core trains experts with SP only."""
    tp = job.parallelism.tensor_model_parallel_size
    if job.model.has_experts and tp > 1 and not job.parallelism.uses_sequence_parallel:
        message = f"experts with TP > 1 need sequence parallelism, or every rank would route all tokens: TP = {tp}"
        yield Problem(message, ("parallelism.sequence_parallel", TP, EXPERTS), "write sequence_parallel: true")


def biases_of_experts(job: Job[ExpertFields]) -> Iterator[Problem]:
    """megatron-core has none in experts that ranks split, and none in those that every token passes."""
    model, etp = job.model, job.parallelism.expert_tensor_parallel
    if model.splits_experts:
        return
    if model.shared_expert_size:
        message = "shared experts have no biases in megatron-core"
        yield Problem(message, (BIAS, SHARED), "write add_bias_linear: false")
    if etp > 1:
        message = f"experts with biases are not split over ranks in megatron-core: ETP = {etp}"
        yield Problem(message, (ETP, BIAS, TP), "write expert_tensor_parallel_size: 1, or add_bias_linear: false")
    if job.precision.fp8 is not None:
        yield Problem("was not tried with biases of experts", ("precision.fp8", BIAS), "leave it out")


def expert_widths(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Each rank holds an equal part of the experts that it shares."""
    model, parallelism = job.model, job.parallelism
    if not model.has_experts:
        return
    etp, tp = parallelism.expert_tensor_parallel, parallelism.tensor_model_parallel_size
    shared = model.shared_expert_size
    if model.moe_ffn_size % etp:
        message = f"moe_ffn_hidden_size / ETP must be whole: {quotient(model.moe_ffn_size, etp)}"
        offers = (multiples_of(etp, EXPERT_WIDTH, model.moe_ffn_size), divisors_of(model.moe_ffn_size, ETP, etp))
        yield Refusal(message, (EXPERT_WIDTH, ETP, TP), numbers=(model.moe_ffn_size, etp), offers=offers)
    if shared % tp:
        message = f"moe_shared_expert_intermediate_size / TP must be whole: {quotient(shared, tp)}"
        offers = (multiples_of(tp, SHARED, shared), divisors_of(shared, TP, tp))
        yield Refusal(message, (SHARED, TP), numbers=(shared, tp), offers=offers)


def grouped_gemm(job: Job[ExpertFields]) -> Iterator[Problem]:
    """One kernel for all experts of a rank is Transformer Engine's, on a GPU."""
    runtime = job.runtime
    if not job.model.moe_grouped_gemm:
        return
    if runtime.device == "cpu":
        message = "grouped matrix products are Transformer Engine's, which needs a GPU, but runtime.device is cpu"
        yield Problem(message, (GROUPED, "runtime.device"), "leave it out: the CPU computes one expert after the other")
    if runtime.layers == "torch":
        message = "grouped matrix products are Transformer Engine's, but runtime.layers is torch"
        yield Problem(message, (GROUPED, "runtime.layers"), "leave it out, or write layers: transformer_engine")


def frozen_routers(job: Job[ExpertFields]) -> Iterator[Problem]:
    """Everything beside the adapters stays as it is, the bias by which experts are chosen too: else they would belong
    to other weights than those that they stand beside. A rate that is not the default asks for something else.
    """
    model = job.model
    if not (model.has_adapters and model.has_experts):
        return
    if model.moe_router_enable_expert_bias and model.moe_router_bias_update_rate and _says_rate(model):
        message = "adapters alone are trained, and the bias of the router's experts stays as it is"
        yield Problem(message, (LORA, BIAS_RATE), "leave moe_router_bias_update_rate out")
    if model.moe_grouped_gemm:
        message = "adapters stand beside torch's layers, but grouped matrix products are Transformer Engine's"
        yield Problem(message, (LORA, GROUPED), "leave moe_grouped_gemm out")


def recomputed_experts(job: Job[ExpertFields]) -> Iterator[Problem]:
    """A module that is recomputed is there: `mlp` is a dense MLP, `moe` the experts of a layer that has some."""
    modules, paths = job.runtime.recompute_modules or (), ("runtime.recompute_modules", EXPERTS)
    if "moe" in modules and not job.model.has_experts:
        yield Problem("`moe` means the experts, but the model has none", paths, "write mlp")
    if "mlp" in modules and job.model.has_experts and all(job.model.moe_layers):
        yield Problem("`mlp` means a dense MLP, but every layer has experts instead", paths, "write moe")


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
    if model.family.is_hybrid:
        message = "a hybrid's pattern says which layers are MLPs and which have experts: a dense one's differs"
        yield Problem(message, (UPCYCLE, PATTERN), "leave it out")
    if model.has_adapters:
        message = "the router of upcycled experts starts at random, and adapters would leave it so"
        yield Problem(message, (UPCYCLE, LORA), "train all weights first, and adapters from that run")
    if not model.splits_experts:
        message = "biases of experts are not started from those of a dense MLP"
        yield Problem(message, (UPCYCLE, BIAS), "write add_bias_linear: false")


def upcycled_routing(job: Job[ExpertFields]) -> Iterator[Problem]:
    """What a token's experts add up to is known before the training: their weights' sum, and nothing beside them."""
    model = job.model
    if not (job.checkpoint.upcycle and model.has_experts):
        return
    if model.shared_expert_size:
        message = "a shared expert would add to what the copies of the dense MLP already give"
        yield Problem(message, (UPCYCLE, SHARED), "leave the shared expert out")
    if model.moe_apply_probs_on_input:
        message = "weighted inputs change what an activation computes, and no factor makes up for it"
        yield Problem(message, (UPCYCLE, PROBS_ON_INPUT), "leave it out")
    if model.moe_router_load_balancing_type == "sinkhorn":
        message = "the weights that sinkhorn gives experts add up to no known number"
        hint = "write aux_loss, seq_aux_loss or global_aux_loss"
        yield Problem(message, (UPCYCLE, BALANCING), hint)
    elif model.moe_router_score_function == "sigmoid" and model.moe_router_topk == 1:
        message = "the sigmoid score of one expert is no known number, as the sum of several is"
        yield Problem(message, (UPCYCLE, TOPK, SCORES), "choose more experts, or softmax")


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
        yield Refusal(
            f"{message} is not whole",
            (EXPERT_WIDTH, UPCYCLE),
            numbers=(whole, width),
            offers=(divisors_of(whole, EXPERT_WIDTH, width),),
        )
        return
    parts, groups = granularity(model), model.moe_router_num_groups
    for path, count in ((EXPERTS, model.expert_count), (TOPK, model.moe_router_topk)):
        if count % parts:
            name = path.rpartition(".")[2]
            message = (
                f"{parts} experts share out each copy of the dense MLP: {name} / {parts} = {quotient(count, parts)}"
            )
            yield Refusal(
                f"{message} is not whole",
                (path, UPCYCLE),
                numbers=(count, parts),
                offers=(multiples_of(parts, path, count),),
            )
    if groups is not None and model.expert_count // groups % parts:
        message = f"{parts} experts share out each copy of the dense MLP, and groups of experts would cut it"
        yield Problem(message, (GROUPS, UPCYCLE), "fewer groups")


TENSOR_PARALLEL: tuple[Rule, ...] = (expert_widths,)
RULES: RulesByTopic = {
    "experts": (
        experts_are_there,
        decoder_experts,
        layers_with_experts,
        chosen_experts,
        weighted_inputs,
        expert_groups,
        expert_bias,
        shared_expert_gate,
        balancing,
        experts_by_expert_parallel,
        expert_ranks,
        expert_tensor_parallel,
        experts_with_tensor_parallel,
        biases_of_experts,
        expert_widths,
        grouped_gemm,
        recomputed_experts,
        frozen_routers,
        upcycled_weights,
        upcycled_routing,
        upcycled_widths,
    ),
}
