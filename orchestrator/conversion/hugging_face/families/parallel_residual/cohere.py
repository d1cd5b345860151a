"""Cohere: Command R and Aya with attention and MLP behind one LayerNorm without a bias, a factor of the logits, and
rotary positions of neighbouring channels; Command R+ normalises each head of queries and keys, and Command R7B has
windows and positions in the same layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    FIRST,
    FIXED,
    LLAMA,
    MLP,
    NORMS_OF_HEADS,
    QKV,
    REST,
    SIZES,
    THEIR_ATTENTION,
    norms_of_heads,
)
from orchestrator.conversion.hugging_face.layer_types import GLOBAL, INTERVALS, LOCAL, TYPES, interval_of
from orchestrator.conversion.weight_mapping import DECODER, Derived, Said, SameAs
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_QK_NORM, _SCALE, _INTERVAL = "use_qk_norm", "logit_scale", INTERVALS[0]
_BEFORE = (f"{ATTENTION}linear_qkv.layer_norm_weight", f"{MLP}linear_fc1.layer_norm_weight")


def _scale(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    factor = said(_SCALE)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
        raise no_network(_SCALE, factor)
    return {_SCALE: factor}


def _without_positions(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    """Layers without a window have no rotary positions; others than `windows` takes are refused there."""
    types = said(TYPES)
    if types is None:
        every = whole(said(_INTERVAL), _INTERVAL)
        types = [GLOBAL if number % every == 0 else LOCAL for number in range(1, fields["num_layers"] + 1)]
    if not isinstance(types, list) or LOCAL not in types:
        raise no_network(TYPES, types)
    return {"no_rope_freq": interval_of([each == GLOBAL for each in types], TYPES, types)}


def _keys_of_positions(model: ModelSpec) -> dict[str, Any] | None:
    """Of versions of transformers that read no list of layers, the interval."""
    every = model.no_rope_freq or model.num_layers + 1
    rotated = tuple(number % every != 0 for number in range(1, model.num_layers + 1))
    return {_INTERVAL: every} if rotated == model.windowed_layers else None


_LOGITS = Derived((_SCALE,), (_SCALE,), _scale, lambda model: {_SCALE: model.logit_scale})
_POSITIONS = Derived(("no_rope_freq",), (TYPES, _INTERVAL), _without_positions, _keys_of_positions)

COHERE = replace(
    LLAMA,
    name="Cohere",
    model_type="cohere",
    architecture="CohereForCausalLM",
    rules=(
        FIRST[0],
        Rule(f"{DECODER}input_layernorm.weight", ("model.layers.{n}.input_layernorm.weight",)),
        replace(QKV, transform="interleaved_qkv_of_pairs"),
        *(
            Rule(
                f"{ATTENTION}{part}_layernorm.weight",
                (f"{THEIR_ATTENTION}{part}_norm.weight",),
                "heads_of_pairs",
                "qk_layernorm",
            )
            for part in "qk"
        ),
        *(rule for rule in REST if rule.ours not in _BEFORE),
    ),
    sizes={**{field: key for field, key in SIZES.items() if field != "norm_epsilon"}, "norm_epsilon": "layer_norm_eps"},
    fixed={
        **{field: value for field, value in FIXED.items() if field not in (_SCALE, *NORMS_OF_HEADS)},
        **{"normalization": "LayerNorm", "norm_bias": False, "parallel_residual": "one_norm"},
    },
    constants={"attention_bias": False},
    defaults={
        **{"num_key_value_heads": SameAs("num_attention_heads"), "layer_norm_eps": 1e-5, "attention_dropout": 0.0},
        **{"initializer_range": 0.02, "tie_word_embeddings": True, "max_position_embeddings": 8192},
        **{"rope_theta": 500000, _SCALE: 0.0625, _QK_NORM: False},
    },
    derived=(_LOGITS, norms_of_heads(_QK_NORM)),
    written={"pad_token_id": None},  # by default a token that a smaller vocabulary does not have
    # What published files say as well, and transformers does not read.
    ignored=frozenset({"model_max_length"}),
)
COHERE2 = replace(
    COHERE,
    name="Cohere 2",
    model_type="cohere2",
    architecture="Cohere2ForCausalLM",
    rules=tuple(rule for rule in COHERE.rules if rule.transform != "heads_of_pairs"),
    sizes={**COHERE.sizes, "sliding_window": "sliding_window"},
    fixed={
        **{
            field: value
            for field, value in COHERE.fixed.items()
            if field not in ("no_rope_freq", "sliding_window", "window_attn_skip_freq")
        },
        "qk_layernorm": False,
    },
    constants={**COHERE.constants, _QK_NORM: False},
    defaults={**COHERE.defaults, "rope_theta": 10000, "sliding_window": 4096, _INTERVAL: 4},
    derived=(_LOGITS, _POSITIONS),
    ignored=COHERE.ignored
    | {
        *("layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct"),
        *("use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding"),
    },
    global_interval=4,
)
