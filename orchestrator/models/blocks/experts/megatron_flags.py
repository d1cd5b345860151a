"""Mixture of experts: flags that mean something beside --num-experts only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from orchestrator.fields.flag_values import FREQUENCY, NUMBER, NUMBER_OR_ZERO, WHOLE, Kind, same, switch, whole_number
from orchestrator.models.blocks.experts.fields import AuxiliaryLoss, ExpertsSpec
from orchestrator.models.blocks.experts.upcycling import granularity
from orchestrator.models.blocks.flags import (
    NOT_MEASURED,
    BlockFlags,
    CheckpointArguments,
    FlagGroup,
    FlagPattern,
    FlagsWithoutField,
    FlagWriter,
    GivenFlags,
    IdleFlags,
    StoredKey,
    all_but,
)

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

EXPERTS, DISPATCHER = "model.num_experts", "model.moe_token_dispatcher_type"
GROUPED = "model.moe_grouped_gemm"
BALANCING, COEFFICIENT = "model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff"
UPCYCLING, GRANULARITY = "moe-use-upcycling", "moe-upcycling-granularity"
"""Flags that start experts from a dense model."""
_ONLY_WITH = "Megatron-LM takes it with --num-experts only"
UPCYCLE, FFN, WIDTH = "checkpoint.upcycle", "model.ffn_hidden_size", "model.moe_ffn_hidden_size"

_CAPACITY = replace(NUMBER, read=lambda text: value if (value := NUMBER.read(text)) >= 0 else None)
"""megatron-core drops no tokens where it is below 0."""
_SCALING = replace(NUMBER, read=lambda text: value if (value := NUMBER.read(text)) != 1 else None)

_ROWS: tuple[tuple[str, str, Kind], ...] = (
    ("moe-layer-freq", "model.moe_layer_freq", FREQUENCY),
    ("moe-ffn-hidden-size", "model.moe_ffn_hidden_size", WHOLE),
    ("moe-shared-expert-intermediate-size", "model.moe_shared_expert_intermediate_size", WHOLE),
    ("moe-router-topk", "model.moe_router_topk", WHOLE),
    ("moe-router-score-function", "model.moe_router_score_function", same("softmax", "sigmoid")),
    ("moe-router-pre-softmax", "model.moe_router_pre_softmax", switch(True)),
    ("moe-router-topk-scaling-factor", "model.moe_router_topk_scaling_factor", _SCALING),
    ("moe-router-num-groups", "model.moe_router_num_groups", WHOLE),
    ("moe-router-group-topk", "model.moe_router_group_topk", WHOLE),
    ("moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias", switch(True)),
    ("moe-router-bias-update-rate", "model.moe_router_bias_update_rate", NUMBER),
    ("moe-shared-expert-gate", "model.moe_shared_expert_gate", switch(True)),
    ("moe-apply-probs-on-input", "model.moe_apply_probs_on_input", switch(True)),
    ("moe-router-dtype", "model.moe_router_dtype", same("fp32", "fp64")),
    (
        "moe-router-load-balancing-type",
        "model.moe_router_load_balancing_type",
        same("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
    ),
    ("moe-aux-loss-coeff", "model.moe_aux_loss_coeff", NUMBER),
    ("moe-z-loss-coeff", "model.moe_z_loss_coeff", NUMBER_OR_ZERO),
    ("moe-expert-capacity-factor", "model.moe_expert_capacity_factor", _CAPACITY),
    ("moe-token-dispatcher-type", DISPATCHER, same("allgather", "alltoall")),
    ("moe-grouped-gemm", GROUPED, switch(True)),
    ("expert-tensor-parallel-size", "parallelism.expert_tensor_parallel_size", WHOLE),
)
_SEVERAL = frozenset(("moe-router-load-balancing-type", "moe-aux-loss-coeff"))
"""Flags that take several words in newer releases: one for each balancing loss."""


def read(given: GivenFlags) -> None:
    counts = [whole_number(word) for word in given.words("num-experts") or ()]
    count = counts[0] if len(set(counts)) == 1 else None
    if len(set(counts)) > 1 and None not in counts:
        given.refuse_value("num-experts", EXPERTS, "every layer with experts has the same number")
    elif given.has("num-experts") and count is None:
        given.write_it("num-experts", EXPERTS)
    elif not count:
        given.no_effect("num-experts", "no experts are none")
        given.no_effect([*(flag for flag, _, _ in _ROWS), UPCYCLING, GRANULARITY], _ONLY_WITH)
        return
    else:
        given.carry("num-experts", EXPERTS, count)
    for flag, path, kind in _ROWS:
        if given.has(flag):
            _read(given, flag, path, kind)
    if not given.has("moe-token-dispatcher-type"):
        given.default(DISPATCHER, "allgather")
    _tell_global_loss(given)
    _read_upcycling(given)


def _tell_global_loss(given: GivenFlags) -> None:
    """megatron-core (router.py) sums the parts of this loss over replicas, and averages their gradients."""
    kinds, weights = given.get(BALANCING), given.get(COEFFICIENT)
    if "global_aux_loss" in (kinds if isinstance(kinds, list) else [kinds]) and weights:
        given.note(
            "Megatron-LM divides the weight of global_aux_loss by DP, and here it is the same at every DP: to train as "
            "the script does, divide its moe_aux_loss_coeff by the script's DP"
        )


def _read_upcycling(given: GivenFlags) -> None:
    """Megatron-LM's --ffn-hidden-size is that of an expert then, and here that of the dense MLP."""
    if not given.has(UPCYCLING):
        given.no_effect(GRANULARITY, f"it goes with --{UPCYCLING}")
        return
    given.carry(UPCYCLING, UPCYCLE, value=True)
    parts, width = given.number(GRANULARITY) if given.has(GRANULARITY) else 1, given.get(FFN)
    if parts is None:
        given.write_it(GRANULARITY, WIDTH)
    elif parts == 1:
        given.no_effect(GRANULARITY, "each expert is a whole copy")
    elif not isinstance(width, int) or given.get(WIDTH) not in (None, width):
        given.refuse_value(GRANULARITY, WIDTH, f"write {FFN}, the width of the dense MLP, and that of an expert")
    else:
        given.carry(GRANULARITY, WIDTH, width)
        given.put(FFN, parts * width, f"{parts} experts share out the dense MLP")


def _read(given: GivenFlags, flag: str, path: str, kind: Kind) -> None:
    words = given.words(flag)
    if flag == "moe-aux-loss-coeff" and given.get("model.moe_router_load_balancing_type") == "none":
        given.no_effect(flag, "there is no balancing loss")
    elif words is None:
        given.write_it(flag, path)
    else:
        try:
            several = flag in _SEVERAL and len(words) > 1
            value = [kind.read(word) for word in words] if several else kind.read(words[0] if words else "")
            if several and kind.is_choice and not set(value) <= set(get_args(AuxiliaryLoss)):
                raise ValueError(f"several balancing losses are of {', '.join(get_args(AuxiliaryLoss))}")
        except ValueError as error:
            if kind.is_choice:
                given.refuse_value(flag, path, str(error))
            else:
                given.write_it(flag, path, str(error))
        else:
            given.carry(flag, path, value)


def write(writer: FlagWriter) -> None:
    model = writer.job.model
    if not model.has_experts:
        return
    writer.add("MODEL", "num-experts", model.num_experts)
    for flag, path, kind in _ROWS:
        value = _coefficients(writer) if path == COEFFICIENT else writer.value(path)
        if path == GROUPED and value is None and writer.may_have_engine:
            value = True  # on by itself with Transformer Engine's layers, and off in Megatron-LM
            writer.say_otherwise(path, f"--{flag}: Megatron-LM has Transformer Engine's layers by default")
        default: Any = "allgather" if path == DISPATCHER else writer.default(path)
        if value in (default, None):
            continue
        texts = (
            [kind.write(each) for each in value]
            if flag in _SEVERAL and isinstance(value, list)
            else [kind.write(value)]
        )
        group = "MODEL" if path.startswith("model.") else "MODEL_PARALLEL"
        if None not in texts:
            writer.add(group, flag, *(texts if kind.values else []))
        else:
            writer.say_otherwise(path, f"without --{flag} it is off")
    _write_upcycling(writer)


def _coefficients(writer: FlagWriter) -> Any:
    """The weights of balancing losses, of which Megatron-LM divides that of the global one by DP."""
    weights, kinds, replicas = writer.value(COEFFICIENT), writer.value(BALANCING), writer.job.data_parallel_size
    if replicas == 1 or "global_aux_loss" not in writer.job.model.auxiliary_losses:
        return weights
    writer.say_otherwise(COEFFICIENT, f"Megatron-LM divides the weight of global_aux_loss by DP = {replicas}")
    if not isinstance(kinds, list):
        return weights * replicas
    pairs = zip(kinds, weights, strict=True)
    return [weight * (replicas if kind == "global_aux_loss" else 1) for kind, weight in pairs]


def _write_upcycling(writer: FlagWriter) -> None:
    job = writer.job
    if not job.checkpoint.upcycle:
        return
    if granularity(job.model) == 1:
        writer.add("MODEL", UPCYCLING)
        return
    reason = "Megatron-LM's --ffn-hidden-size is then the width of an expert, and it scales both matrices"
    writer.unsaid_value(UPCYCLE, reason)


_TOGETHER = FlagGroup(
    {
        "num-experts": None,  # Megatron-DeepSpeed takes one for each layer
        **{flag: None if flag in _SEVERAL else kind.values for flag, _, kind in _ROWS},
        **{UPCYCLING: 0, GRANULARITY: 1},
    },
    read,
    write,
    (EXPERTS, *(path for _, path, _ in _ROWS), UPCYCLE),
)
_OPTION = "this option of experts is not in this version"


def _network(model: ExpertFields) -> dict[str, Any]:
    if not model.has_experts:
        return dict.fromkeys(ExpertsSpec.model_fields)
    return {
        "moe_ffn_hidden_size": model.moe_ffn_size,
        "moe_layer_freq": [int(has) for has in model.moe_layers],
        "moe_router_topk_scaling_factor": model.moe_router_topk_scaling_factor or 1.0,
        "moe_router_group_score_topk": model.group_score_topk,
    }


FLAGS = BlockFlags(
    translated=(_TOGETHER,),
    old_names={
        "moe-num-experts": "num-experts",
        "moe-top-k": "moe-router-topk",
        "moe-loss-weight": "moe-aux-loss-coeff",
        "moe-loss-coeff": "moe-aux-loss-coeff",
        "topk": "moe-router-topk",
    },
    without_field=(
        FlagsWithoutField("enable-experimental-moe moe-extended-tp moe-enable-routing-replay", _OPTION, "aside"),
        FlagsWithoutField(
            "moe-router-force-load-balancing moe-router-force-biased= moe-router-quantile-balancing-ema=",
            _OPTION,
            "training",
        ),
        FlagsWithoutField("moe-input-jitter-eps=", _OPTION, "training", harmless=("0.0", "0")),
        FlagsWithoutField("moe-token-drop-policy=", _OPTION, "training", harmless=("probs",)),
        FlagsWithoutField("moe-latent-size=", _OPTION, "training", WIDTH),
        FlagsWithoutField(
            "expert-interval=",
            "write the layers that have experts, as in [0, 1, 0, 1]",
            "training",
            "model.moe_layer_freq",
            harmless=("1",),
        ),
        FlagsWithoutField(
            "mlp-type=", "experts beside a dense MLP are not in this version", "training", harmless=("standard",)
        ),
    ),
    patterns=(
        FlagPattern("moe-per-layer-logging", NOT_MEASURED, "none"),
        FlagPattern("moe-routing-trace-.*", NOT_MEASURED, "aside"),
        FlagPattern(all_but("moe-", _TOGETHER.flags), _OPTION, "training"),
    ),
    idle=(IdleFlags("(moe|expert)-.*", EXPERTS, lambda count: count is None, _ONLY_WITH),),
    arguments=CheckpointArguments(
        "num_experts",
        "has_experts",
        (
            *("moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_router_topk"),
            *("moe_router_score_function", "moe_router_pre_softmax", "moe_router_dtype"),
            *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"),
            *("moe_expert_capacity_factor", "moe_token_dispatcher_type", "moe_router_topk_scaling_factor"),
            *("moe_router_num_groups", "moe_router_group_topk", "moe_shared_expert_gate"),
            *("moe_router_enable_expert_bias", "moe_router_bias_update_rate", "moe_apply_probs_on_input"),
        ),
        keys=(StoredKey("pre_mlp_layernorm.", "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),),
    ),
    not_imported={
        "moe_latent_size": "latent experts",
        "moe_mlp_glu_interleave_size": "gates between the rows of a matrix",
        "moe_shared_expert_glu_interleave_size": "gates between the rows of a matrix",
    },
    network=_network,
)
