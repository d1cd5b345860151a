"""Grouped-query attention: flags that no field has."""

from orchestrator.models.blocks.flags import BlockFlags, FlagPattern, FlagsWithoutField

_VARIANT = "this variant of the model is not in this version"
FLAGS = BlockFlags(
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
)
