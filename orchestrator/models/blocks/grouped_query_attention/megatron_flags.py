"""Grouped-query attention: flags that no field has, and layers that Megatron-LM has for all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.fields.values import TO_BE_WRITTEN
from orchestrator.models.blocks.flags import (
    BlockFlags,
    FlagGroup,
    FlagPattern,
    FlagsWithoutField,
    FlagWriter,
    GivenFlags,
)

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import GroupedQueryFields

_VARIANT = "this variant of the model is not in this version"
_OF_ROPE = ("rotary_percent", "rotary_base", "rope_scaling")
_OF_DISTANCE = ("relative_attention_num_buckets", "relative_attention_max_distance")
L2_NORM, NO_ROPE, _L2_FLAG = "model.qk_l2_norm", "model.no_rope_freq", "qk-l2-norm"
_L2_EVERYWHERE = "Megatron-LM normalises layers without rotary positions too, and this version those with them alone"
_L2_LAYERS = "Megatron-LM has this norm in dense models with Transformer Engine only"


def read(given: GivenFlags) -> None:
    """Nothing."""


def write(writer: FlagWriter) -> None:
    if writer.job.model.position_embedding_type == "relative" and writer.job.runtime.layers == "torch":
        writer.take_back("transformer-impl")
        writer.say_otherwise("runtime.layers", "Megatron-LM has relative positions with Transformer Engine only")


def read_unweighted_norm(given: GivenFlags) -> None:
    """Rotation changes no norm: where all layers rotate, megatron-core's norm before it is that of rotated ones."""
    if given.get("model.architecture") != "gpt":
        given.no_effect(_L2_FLAG, "Megatron-LM's GPT alone takes it")
    elif given.get("runtime.layers") == "torch" and not given.has("num-experts"):
        given.no_effect(_L2_FLAG, _L2_LAYERS)
    elif not given.has(_L2_FLAG):
        return
    elif given.get("model.position_embedding_type") not in ("rope", TO_BE_WRITTEN) or given.get(NO_ROPE) is not None:
        given.refuse_value(_L2_FLAG, L2_NORM, _L2_EVERYWHERE)
    else:
        given.carry(_L2_FLAG, L2_NORM, value=True)
        if given.has("qk-layernorm"):
            given.overrule("qk-layernorm", f"--{_L2_FLAG} goes over it")


def write_unweighted_norm(writer: FlagWriter) -> None:
    """The flag, and the layers that heed it; or why it says more than the field."""
    model = writer.job.model
    if not model.qk_l2_norm:
        return
    if model.no_rope_freq is not None:
        writer.unsaid_value(L2_NORM, _L2_EVERYWHERE)
        return
    writer.add("MODEL", _L2_FLAG)
    if writer.job.runtime.layers == "torch" and not model.has_experts:
        writer.take_back("transformer-impl")
        writer.say_otherwise("runtime.layers", _L2_LAYERS)


def _network(model: GroupedQueryFields) -> dict[str, Any]:
    found: dict[str, Any] = {
        "num_query_groups": model.query_groups,
        "kv_channels": model.head_dim,
        "add_qkv_bias": model.has_qkv_bias,
        "window_attn_skip_freq": None
        if model.sliding_window is None
        else [int(each) for each in model.windowed_layers],
    }
    if model.position_embedding_type != "rope":
        found |= dict.fromkeys(_OF_ROPE)
    if model.position_embedding_type != "relative":
        found |= dict.fromkeys(_OF_DISTANCE)
    return found


FLAGS = BlockFlags(
    translated=(
        FlagGroup({}, read, write, ()),
        FlagGroup({_L2_FLAG: 0}, read_unweighted_norm, write_unweighted_norm, (L2_NORM,)),
    ),
    without_field=(
        FlagsWithoutField("rotary-interleaved", _VARIANT, "training", "model.position_embedding_type"),
        FlagsWithoutField("no-query-key-layer-scaling", "scores are scaled by the head's width alone", "none"),
        FlagsWithoutField(
            "apply-query-key-layer-scaling",
            "scores are scaled by the head's width alone, the same except for rounding",
            "aside",
        ),
    ),
    patterns=(
        FlagPattern("(no-)?yarn-.*", "it goes with --position-embedding-type yarn", "aside"),
        FlagPattern("mrope-section", "it goes with --position-embedding-type mrope", "aside"),
    ),
    not_imported={
        "rotary_interleaved": "interleaved rotary positions",
        "apply_query_key_layer_scaling": "scores scaled by the layer's number",
        "qk_l2_norm": "queries and keys of length 1",
    },
    network=_network,
)
