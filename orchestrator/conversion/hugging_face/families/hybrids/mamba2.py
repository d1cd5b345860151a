"""Mamba-2: a decoder of state space layers alone."""

from __future__ import annotations

import math
from typing import Any, get_args

from orchestrator.conversion.hugging_face.config_keys import no_network, whole
from orchestrator.conversion.hugging_face.families.llama import FIXED as OF_LLAMA
from orchestrator.conversion.weight_mapping import DECODER, Derived, Family, OneOf, Said
from orchestrator.models.blocks import registry as blocks
from orchestrator.models.blocks.state_space.parameters import CONVOLUTION, state_space_width
from orchestrator.models.blocks.state_space.weights import CONVOLVED, PROJECTED
from orchestrator.models.blocks.weights import Rule
from orchestrator.models.layers import layers
from orchestrator.spec.model import ModelSpec

THEIR_LAYER = "backbone.layers.{n}."
_MIXER, _THEIR_MIXER = f"{DECODER}mixer.", f"{THEIR_LAYER}mixer."
_STEPS, _INFINITE = "time_step_limit", {"__float__": "Infinity"}


def _of_mixer(name: str, *parts: str) -> Rule:
    return Rule(f"{_MIXER}{name}", (f"{_THEIR_MIXER}{name}",), only_in=blocks.STATE_SPACE.name, parts=parts)


EMBEDDING = Rule("embedding.word_embeddings.weight", ("backbone.embeddings.weight",), "padded_rows")
STATE_SPACE = (
    Rule(f"{_MIXER}in_proj.layer_norm_weight", (f"{THEIR_LAYER}norm.weight",), only_in=blocks.STATE_SPACE.name),
    _of_mixer("in_proj.weight", *PROJECTED),
    _of_mixer("conv1d.weight", *CONVOLVED),
    _of_mixer("conv1d.bias", *CONVOLVED),
    *map(_of_mixer, ("dt_bias", "A_log", "D", "norm.weight", "out_proj.weight")),
)
OUTPUT = (
    Rule("decoder.final_layernorm.weight", ("backbone.norm_f.weight",)),
    Rule("output_layer.weight", ("lm_head.weight",), "padded_rows", only_with="untie_embeddings_and_output_weights"),
)

FIXED: dict[str, Any] = {
    **{field: value for field, value in OF_LLAMA.items() if not field.startswith("rot")},
    **{"architecture": "mamba", "position_embedding_type": "none"},
    "norm_epsilon": 1e-5,  # megatron-core's norm inside a state space layer has no other
}
CONSTANTS = {"conv_kernel": CONVOLUTION, "use_conv_bias": True, "use_bias": False, "layer_norm_epsilon": 1e-5}
WRITTEN = {"residual_in_fp32": False}
"""It has the format that the model computes in, as in other decoders; either way is imported."""
IGNORED = frozenset(
    (
        *("time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual"),
        *("time_step_init_scheme", "time_step_scale", "chunk_size", "residual_in_fp32"),
    )
)
"""How weights are drawn, how many tokens a kernel takes at once, and in which format branches are added."""

_OF_OTHER_LAYERS = frozenset(
    (
        *("no_rope_freq", "sliding_window", "window_attn_skip_freq", "attention_logit_softcapping", "softmax_scale"),
        *("add_bias_linear", "add_qkv_bias", "qk_layernorm", "qk_layernorm_scope"),
    )
)
"""Fields that do nothing to a state space layer."""


def _no_limit(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    if (limit := said(_STEPS)) not in (None, [0, float("inf")], [0, _INFINITE]):
        raise no_network(_STEPS, limit)
    return {}


UNLIMITED = Derived((), (_STEPS,), _no_limit, lambda model: {})
"""Steps are as long as the softplus says; written nowhere, as JSON has no name for what is infinite."""


def _width(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    keys = ("hidden_size", "num_heads", "head_dim", "expand")
    hidden, heads, channels, expand = (whole(said(key), key) for key in keys)
    if hidden * expand != heads * channels:
        raise no_network("expand", expand)
    # No layer attends: a number that divides what it must, and is divided by tensor parallelism as `num_heads` is.
    return {"num_attention_heads": math.gcd(hidden, heads)}


def _expand(model: ModelSpec) -> dict[str, Any] | None:
    """None where the width inside is no multiple of the hidden size."""
    times, rest = divmod(state_space_width(model), model.hidden_size)
    return {"expand": times} if rest == 0 else None


def _alone(model: ModelSpec) -> dict[str, Any] | None:
    return {} if set(layers(model)) == {(blocks.STATE_SPACE,)} else None


MAMBA2 = Family(
    name="Mamba-2",
    model_type="mamba2",
    architecture="Mamba2ForCausalLM",
    base="backbone.",
    rules=(EMBEDDING, *STATE_SPACE, *OUTPUT),
    sizes={
        **{"num_layers": "num_hidden_layers", "hidden_size": "hidden_size"},
        **{"mamba_num_heads": "num_heads", "mamba_head_dim": "head_dim", "mamba_state_dim": "state_size"},
        **{"mamba_num_groups": "n_groups", "init_method_std": "initializer_range"},
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field not in _OF_OTHER_LAYERS},
        "position_embedding_type": OneOf(("none", "rope", "alibi")),  # of attention
    },
    constants=CONSTANTS,
    defaults={
        **{"num_heads": 128, "head_dim": 64, "hidden_size": 4096, "state_size": 128, "num_hidden_layers": 64},
        **{"expand": 2, "n_groups": 8, "initializer_range": 0.1, "tie_word_embeddings": False, "vocab_size": 32768},
    },
    # Of MLPs; the scan has no other than this one.
    activations=dict.fromkeys(get_args(ModelSpec.model_fields["activation"].annotation), ("silu",)),
    rotary=False,
    positions=None,
    imported={"seq_length": 2048, "add_bias_linear": False},
    moved={"backbone.embedding.": "backbone.embeddings."},
    copies={"lm_head.weight": "backbone.embeddings.weight"},
    written=WRITTEN,
    # Keys that older versions write and read nowhere: the norm is there, behind the gate, and `expand` says the width.
    ignored=IGNORED | {"rms_norm", "norm_before_gate", "intermediate_size"},
    derived=(
        UNLIMITED,
        Derived(("mamba_num_heads", "num_attention_heads"), ("num_heads", "head_dim", "expand"), _width, _expand),
        Derived(("hybrid_override_pattern",), ("num_hidden_layers",), lambda said, fields: {}, _alone),
    ),
)
