"""Grouped-query attention: flags that no field has, and layers that Megatron-LM has for all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def read(given: GivenFlags) -> None:
    """Nothing."""


def write(writer: FlagWriter) -> None:
    if writer.job.model.position_embedding_type == "relative" and writer.job.runtime.layers == "torch":
        writer.take_back("transformer-impl")
        writer.say_otherwise("runtime.layers", "Megatron-LM has relative positions with Transformer Engine only")


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
    translated=(FlagGroup({}, read, write, ()),),
    without_field=(
        FlagsWithoutField("rotary-interleaved", _VARIANT, "training", "model.position_embedding_type"),
        FlagsWithoutField("qk-l2-norm", _VARIANT, "training", "model.qk_layernorm"),
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
