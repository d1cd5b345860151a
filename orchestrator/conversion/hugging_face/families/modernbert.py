"""ModernBERT: a BERT without biases, whose embeddings are normalised, with gated MLPs, and with windows in some layers,
which have a rotary base of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import no_network, section, whole
from orchestrator.conversion.hugging_face.families.llama import FIXED, LLAMA
from orchestrator.conversion.hugging_face.layer_types import GLOBAL, LOCAL, TYPES, layer_types, windows_of
from orchestrator.conversion.hugging_face.rotary import rotary_by_kind, rotary_fields, rotary_parameters
from orchestrator.conversion.weight_mapping import ENCODER, Derived, Family, Said
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_LAYER = "model.layers.{n}."
_UNTIED = "untie_embeddings_and_output_weights"
_PARAMETERS, _SCALING, _POSITIONS = "rope_parameters", "rope_scaling", "max_position_embeddings"
_WINDOW, _INTERVAL = "local_attention", "global_attn_every_n_layers"
_BASES = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
"""What older versions of transformers read instead of `rope_parameters`."""
_BIASES = ("attention_bias", "mlp_bias")
_ROTARY = ("rotary_base", "rotary_base_local", "rope_scaling")


def _windows(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    """A window there is on both sides, and a half of it here beside the token itself."""
    layers, beside, types = fields["num_layers"], whole(said(_WINDOW), _WINDOW, least=0) // 2, said(TYPES)
    if types is None:
        every = whole(said(_INTERVAL), _INTERVAL)
        types = [LOCAL if number % every else GLOBAL for number in range(whole(layers, "num_hidden_layers"))]
    return windows_of(types, layers, beside + 1)


def _keys_of_windows(model: ModelSpec) -> dict[str, Any]:
    """With the interval, where there is one, for versions of transformers that read no list of layers."""
    types = layer_types(model)
    every = next((number for number, each in enumerate(types) if number and each == GLOBAL), model.num_layers)
    is_regular = types == [LOCAL if number % every else GLOBAL for number in range(model.num_layers)]
    window = {} if model.sliding_window is None else {_WINDOW: 2 * (model.sliding_window - 1)}
    return {TYPES: types, **window, **({_INTERVAL: every} if is_regular else {})}


def _rotary(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    """The positions of each kind of layer; those of layers with a window are not scaled where they differ."""
    new, old = rotary_by_kind({_PARAMETERS: said(_PARAMETERS)}), section({_SCALING: said(_SCALING)}, _SCALING)
    of_kind = {}
    for kind, base in _BASES.items():
        parameters = {"rope_theta": said(base), **old, **section(new, kind)}
        of_kind[kind] = rotary_fields({_PARAMETERS: parameters, _POSITIONS: said(_POSITIONS)}, LLAMA)
    if fields["sliding_window"] is None:
        return of_kind[GLOBAL]
    if fields["window_attn_skip_freq"] is None or of_kind[LOCAL] == of_kind[GLOBAL]:
        return of_kind[LOCAL]
    if _SCALING in of_kind[LOCAL]:
        raise no_network(_PARAMETERS if new else _SCALING, new or old)
    return {**of_kind[GLOBAL], "rotary_base_local": of_kind[LOCAL]["rotary_base"]}


def _keys_of_rotary(model: ModelSpec) -> dict[str, Any]:
    """With the bases of older versions of transformers."""
    parameters = dict.fromkeys(_BASES, rotary_parameters(model))
    if model.rotary_base_local is not None:
        parameters[LOCAL] = {"rope_type": "default", "rope_theta": float(model.rotary_base_local)}
    return {_PARAMETERS: parameters, **{_BASES[kind]: each["rope_theta"] for kind, each in parameters.items()}}


def _biases(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    attention, mlp = (bool(said(key)) for key in _BIASES)
    if attention != mlp:
        raise no_network(f"{_BIASES[mlp]} beside another {_BIASES[attention]}", True)
    return {"add_bias_linear": attention}


def _both(ours: str, theirs: str, bias: str, transform: str = "same") -> tuple[Rule, Rule]:
    """A matrix or a norm, and its bias where the field `bias` is set."""
    return (
        Rule(f"{ours}weight", (f"{theirs}weight",), transform),
        Rule(f"{ours}bias", (f"{theirs}bias",), transform, bias),
    )


_OF_LINEARS, _OF_NORMS = "add_bias_linear", "norm_bias"

MODERNBERT = Family(
    name="ModernBERT",
    model_type="modernbert",
    architecture="ModernBertForMaskedLM",
    base="model.",
    rules=(
        Rule("embedding.word_embeddings.weight", ("model.embeddings.tok_embeddings.weight",), "padded_rows"),
        *_both("embedding.layer_norm.", "model.embeddings.norm.", _OF_NORMS),
        *(
            replace(rule, unless_first=True)
            for rule in _both(f"{ENCODER}self_attention.linear_qkv.layer_norm_", f"{_LAYER}attn_norm.", _OF_NORMS)
        ),
        *_both(f"{ENCODER}self_attention.linear_qkv.", f"{_LAYER}attn.Wqkv.", _OF_LINEARS, "joined_qkv"),
        *_both(f"{ENCODER}self_attention.linear_proj.", f"{_LAYER}attn.Wo.", _OF_LINEARS),
        *_both(f"{ENCODER}mlp.linear_fc1.layer_norm_", f"{_LAYER}mlp_norm.", _OF_NORMS),
        *_both(f"{ENCODER}mlp.linear_fc1.", f"{_LAYER}mlp.Wi.", _OF_LINEARS),
        *_both(f"{ENCODER}mlp.linear_fc2.", f"{_LAYER}mlp.Wo.", _OF_LINEARS),
        *_both("encoder.final_layernorm.", "model.final_norm.", _OF_NORMS),
        *_both("lm_head.dense.", "head.dense.", "bert_head_bias"),
        *_both("lm_head.layer_norm.", "head.norm.", _OF_NORMS),
        Rule("output_layer.weight", ("decoder.weight",), "padded_rows", only_with=_UNTIED),
        Rule("output_layer.bias", ("decoder.bias",), "padded_rows"),
    ),
    sizes={
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_attention_heads": "num_attention_heads",
        "ffn_hidden_size": "intermediate_size",
        "norm_epsilon": "norm_eps",
        "norm_bias": "norm_bias",
        "bert_head_bias": "classifier_bias",
        "hidden_dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "init_method_std": "initializer_range",
    },
    derived=(
        Derived(("sliding_window", "window_attn_skip_freq"), (TYPES, _WINDOW, _INTERVAL), _windows, _keys_of_windows),
        Derived(_ROTARY, (_PARAMETERS, _SCALING, *_BASES.values()), _rotary, _keys_of_rotary),
        Derived((_OF_LINEARS,), _BIASES, _biases, lambda model: dict.fromkeys(_BIASES, model.add_bias_linear)),
    ),
    fixed={
        **{
            field: value
            for field, value in FIXED.items()
            if field not in ("sliding_window", "window_attn_skip_freq", "rotary_base_local", _OF_LINEARS, _OF_NORMS)
        },
        **{"architecture": "bert", "normalization": "LayerNorm", "embedding_norm": True},
        **{"num_query_groups": None, "kv_channels": None, "bert_binary_head": False, "num_tokentypes": None},
    },
    constants={"decoder_bias": True, "classifier_activation": "gelu"},
    defaults={
        **{"vocab_size": 50368, "num_hidden_layers": 22, "hidden_size": 768, "num_attention_heads": 12},
        **{"intermediate_size": 1152, "norm_eps": 1e-5, "norm_bias": False, "classifier_bias": False},
        **{"embedding_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.02},
        **{_POSITIONS: 8192, _WINDOW: 128, _INTERVAL: 3, _BASES[GLOBAL]: 160000, _BASES[LOCAL]: 10000},
        **{"tie_word_embeddings": True, "decoder_bias": True},
        **dict.fromkeys(_BIASES, False),
    },
    activations={
        "geglu_exact": ("gelu",),
        "geglu": ("gelu_pytorch_tanh", "gelu_new"),
        "swiglu": ("silu", "swish"),
    },
    activation_key="hidden_activation",
    rotary=False,
    repeated={"mlp_dropout": "embedding_dropout"},
    written={"pad_token_id": None},  # by default a token that a smaller vocabulary does not have
    # How weights begin, what computes, what losses are of, heads of other tasks, and what published files say of BERT.
    ignored=frozenset(
        {
            *("initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"),
            *("sparse_prediction", "sparse_pred_ignore_index", "classifier_pooling", "layer_norm_eps"),
            *("position_embedding_type",),
        }
    ),
    generates=False,
    heads=("head.", "decoder."),
    copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
