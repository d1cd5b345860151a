"""Configurations of transformers that no network here is, and networks that no configuration there is."""

from __future__ import annotations

from typing import Any

import pytest
from support.refused import refused

from orchestrator.conversion.hugging_face.config_json import to_config, to_model
from orchestrator.conversion.hugging_face.families.registry import (
    family_of_model,
    family_of_type,
)
from tests.unit.conversion.test_config_json import job_of

LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "vocab_size": 256, "num_hidden_layers": 1, "hidden_size": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8},
}
LOCAL = "sliding_attention"
GLM = {"model_type": "glm4_moe", "first_k_dense_replace": 0}


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"model_type": "phimoe"}, ("unsupported_model_type", "phimoe")),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0]}},
            ("unsupported_rope_type", "su"),
        ),
        (
            {"model_type": "stablelm", "use_parallel_residual": True},
            ("unsupported_config_value", "use_parallel_residual", "true"),
        ),
        *(
            ({"model_type": "llama4_text", **more}, ("unsupported_config_value", *more))
            for more in (
                *({"attention_bias": True}, {"num_experts_per_tok": 2}, {"moe_layers": []}, {"moe_layers": 1}),
                *({"interleave_moe_layer_step": 2}, {"interleave_moe_layer_step": 0}, {"attention_chunk_size": None}),
                *({"no_rope_layers": [0]}, {"no_rope_layer_interval": 1}, {"layer_types": ["sliding_attention"]}),
            )
        ),
        (
            {"model_type": "llama4_text", "num_hidden_layers": 4, "attn_scale": -1.0},
            ("unsupported_config_value", "attn_scale", "-1.0"),
        ),
        (
            {"model_type": "llama4_text", "num_hidden_layers": 4, "floor_scale": 0},
            ("unsupported_config_value", "floor_scale", "0"),
        ),
        ({"attention_bias": True}, ("unsupported_config_value", "attention_bias", "true")),
        ({"quantization_config": {}}, ("quantized_weights", "quantization_config")),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ("unsupported_rope_type", "dynamic")),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "truncate": False}}, ("unknown_rope_keys", "truncate")),
        ({"rope_theta": "10000"}, ("rope_theta_not_a_number", "rope_theta", "10000")),
        ({"hidden_act": "relu"}, ("unsupported_config_value", "hidden_act", "relu")),
        (
            {"model_type": "gemma2", "layer_types": ["chunked_attention"]},
            ("unsupported_config_value", "layer_types", "chunked_attention"),
        ),
        (
            {"model_type": "gemma2", "sliding_window_pattern": 0},
            ("unsupported_config_value", "sliding_window_pattern", "0"),
        ),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"]},
            ("unsupported_config_value", "layer_types", "sliding_window", "null"),
        ),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": -1},
            ("unsupported_config_value", "-1"),
        ),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, ("unsupported_config_value", "use_sliding_window")),
        ({"model_type": "gemma2", "sliding_window": None}, ("unsupported_config_value", "sliding_window", "null")),
        (
            {"model_type": "gemma2", "query_pre_attn_scalar": 0.5},
            ("config_value_not_positive", "query_pre_attn_scalar", "0.5"),
        ),
        (
            {"model_type": "gemma2", "use_bidirectional_attention": True},
            ("unsupported_config_value", "use_bidirectional_attention", "true"),
        ),
        (
            {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0},
            ("unsupported_config_value", "attn_logit_softcapping", "50"),
        ),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}}, ("unknown_rope_keys", "rope_theta")),
        (
            {
                "model_type": "gemma3_text",
                "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
            },
            ("unsupported_rope_scaling", "rope_parameters"),
        ),
        ({"model_type": "granite", "logits_scaling": 0}, ("unsupported_config_value", "logits_scaling", "0")),
        ({"model_type": "granite", "mlp_bias": True}, ("unsupported_config_value", "mlp_bias", "true")),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, ("unsupported_config_value", "no_rope_layers")),
        ({"model_type": "smollm3", "num_hidden_layers": 3, "no_rope_layers": [0, 0, 1]}, ("unsupported_config_value",)),
        (
            {"model_type": "smollm3", "no_rope_layer_interval": 1},
            ("unsupported_config_value", "no_rope_layer_interval", "1"),
        ),
        (
            {"model_type": "smollm3", "use_sliding_window": True},
            ("unsupported_config_value", "use_sliding_window", "true"),
        ),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            ("unsupported_config_value", "position_embedding_type", "relative_key"),
        ),
        ({"model_type": "roberta", "pad_token_id": None}, ("unsupported_config_value", "pad_token_id", "null")),
        ({"model_type": "roberta", "is_decoder": True}, ("unsupported_config_value", "is_decoder", "true")),
        *(
            ({"model_type": "modernbert", key: value}, ("unsupported_config_value", key))
            for key, value in {
                **{"decoder_bias": False, "classifier_activation": "relu", "attention_bias": True},
                **{"layer_types": ["chunked_attention"] * 22, "local_attention": -1, "hidden_activation": "relu"},
                "global_attn_every_n_layers": 0,
            }.items()
        ),
        ({"model_type": "modernbert", "mlp_bias": True}, ("unsupported_config_value", "mlp_bias", "true")),
        ({"model_type": "modernbert", "rope_parameters": {"rope_theta": 1e4}}, ("unknown_rope_keys", "rope_theta")),
        (
            {
                **{"model_type": "modernbert", "num_hidden_layers": 2},
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            ("unsupported_config_value", "rope_scaling"),
        ),
        ({"model_type": "bert", "hidden_act": "gelu_new"}, ("unsupported_config_value", "BERT", "gelu")),
        (
            {"model_type": "t5", "feed_forward_proj": "gated-relu"},
            ("unsupported_config_value", "feed_forward_proj", "gated-relu"),
        ),
        ({**GLM, "norm_topk_prob": False}, ("unsupported_config_value", "norm_topk_prob", "false")),
        (
            {**GLM, "num_experts_per_tok": 1},
            ("unsupported_config_value", "norm_topk_prob", "true", "num_experts_per_tok of 1"),
        ),
        ({**GLM, "n_shared_experts": 0}, ("unsupported_config_value", "n_shared_experts", "0")),
        (
            {"model_type": "glm4_moe", "first_k_dense_replace": 99},
            ("unsupported_config_value", "first_k_dense_replace", "99"),
        ),
        (
            {"model_type": "qwen3_moe", "decoder_sparse_step": 99},
            ("unsupported_config_value", "decoder_sparse_step", "99"),
        ),
        ({"model_type": "gpt_neox", "attention_bias": False}, ("unsupported_config_value", "attention_bias", "false")),
        (
            {"model_type": "gpt_neox", "rotary_pct": 0.5, "partial_rotary_factor": 0.25},
            ("conflicting_config_values", "rotary_pct", "partial_rotary_factor"),
        ),
        ({"model_type": "falcon", "alibi": True}, ("unsupported_config_value", "alibi", "true")),
        ({"model_type": "falcon", "parallel_attn": False}, ("unsupported_config_value", "parallel_attn", "false")),
        ({"model_type": "cohere", "attention_bias": True}, ("unsupported_config_value", "attention_bias", "true")),
        ({"model_type": "cohere", "logit_scale": None}, ("unsupported_config_value", "logit_scale", "null")),
        ({"model_type": "cohere", "logit_scale": -0.5}, ("unsupported_config_value", "logit_scale", "-0.5")),
        ({"model_type": "cohere2", "use_qk_norm": True}, ("unsupported_config_value", "use_qk_norm", "true")),
        ({"model_type": "cohere2", "sliding_window": None}, ("unsupported_config_value", "sliding_window", "null")),
        (
            {"model_type": "cohere2", "layer_types": ["full_attention"]},
            ("unsupported_config_value", "layer_types", "full_attention"),
        ),
        (
            {
                "model_type": "cohere2",
                "num_hidden_layers": 3,
                "layer_types": ["full_attention", "full_attention", LOCAL],
            },
            ("unsupported_config_value", "layer_types", "full_attention"),
        ),
        (
            {"model_type": "cohere2", "sliding_window_pattern": 0},
            ("unsupported_config_value", "sliding_window_pattern"),
        ),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, ("unsupported_config_value", "clip_qkv", "8.0")),
        (
            {"model_type": "granitemoeshared", "shared_intermediate_size": -1},
            ("unsupported_config_value", "shared_intermediate_size", "-1"),
        ),
        ({"model_type": "gpt_oss", "attention_bias": False}, ("unsupported_config_value", "attention_bias", "false")),
        ({"model_type": "gpt_oss", "swiglu_alpha": 1.5}, ("unsupported_config_value", "swiglu_alpha", "1.5")),
        ({"model_type": "gpt_oss", "swiglu_limit": None}, ("unsupported_config_value", "swiglu_limit", "null")),
        ({"model_type": "gpt_oss", "hidden_act": "gelu"}, ("unsupported_config_value", "hidden_act", "gelu")),
        ({"model_type": "gpt_oss", "experts_per_token": 2, "num_experts_per_tok": 4}, ("conflicting_config_values",)),
        (
            {"model_type": "gpt_oss", "quantization_config": {"quant_method": "fp8"}},
            ("quantized_weights", "quantization_config"),
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, ("quantized_weights", "quantization_config")),
        ({"model_type": "t5", "is_decoder": True}, ("unsupported_config_value", "is_decoder", "true")),
        ({"intermediate_size": None}, ("missing_config_key", "intermediate_size")),
        ({"vocab_size": "many"}, ("config_value_not_positive", "many")),
    ],
)
def test_what_cannot_be_represented_is_refused(more: dict[str, Any], refusal: tuple[str, ...]) -> None:
    config = {**LLAMA, **more}
    with refused(*refusal):
        to_model(config, family_of_type(config["model_type"]))


@pytest.mark.parametrize(
    ("preset", "more", "refusal"),
    [
        ("gemma2-2b", {"softmax_scale": 0.07}, ("network_not_exportable", "query_pre_attn_scalar")),
        ("gemma3-4b", {"rotary_base_local": None}, ("network_not_exportable", "model.rotary_base_local")),
    ],
)
def test_what_config_json_cannot_say_is_refused(preset: str, more: dict[str, Any], refusal: tuple[str, ...]) -> None:
    model = job_of({"preset": preset, **more}).model
    with refused(*refusal):
        to_config(model, family_of_model(model), 100)


@pytest.mark.parametrize("names", [(), ("transformer.h.0.input_layernorm.weight",)])
def test_falcon_rw_is_refused_by_its_positions(names: tuple[str, ...]) -> None:
    """By its published config.json, whether names of weights tell its family or not."""
    config = {
        **{"model_type": "falcon", "alibi": True, "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0},
        **{"apply_residual_connection_post_layernorm": False, "bias": True, "bos_token_id": 1, "eos_token_id": 2},
        **{"hidden_dropout": 0.0, "hidden_size": 2048, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5},
        **{"multi_query": False, "new_decoder_architecture": False, "num_attention_heads": 32},
        **{"num_hidden_layers": 24, "parallel_attn": False, "vocab_size": 50304, "torch_dtype": "bfloat16"},
    }
    with refused("unsupported_config_value", "alibi", "true"):
        to_model(config, family_of_type("falcon", names))
