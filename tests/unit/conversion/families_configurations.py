"""Small configurations of transformers, by the name of a test's case."""

from __future__ import annotations

from typing import Any

import transformers

from tests.unit.conversion import native_images

VOCAB, LENGTH, NEW = 101, 16, 4
SIZES = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
FEW_EXPERTS = {"moe_intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2}
DELTA = {
    **{"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32},
    **{"linear_value_head_dim": 12, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-2},
}
"""What a state gives for one token may be next to nothing, and is normalised: without an epsilon to speak of fp32 has
five digits of it."""
FEWER = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
FALCON = {key: value for key, value in FEWER.items() if key != "intermediate_size"}
NEW_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2}
FACTORS = {
    **{"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2},
    "logits_scaling": 0.7,
}
GROUPED_EXPERTS = {
    **{"moe_intermediate_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2},
    **{"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "num_mtp_layers": 0},
}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
LONGROPE = {
    "rope_parameters": {
        **{"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5, 2.0, 3.0]},
        "long_factor": [2.0, 5.0, 9.0, 17.0],
    }
}
"""Of heads of 8."""
LLAMA4 = {
    **{"head_dim": 16, "intermediate_size": 40, "intermediate_size_mlp": 56, "num_local_experts": 4},
    **{"floor_scale": 3, "attn_scale": 0.7, "attention_chunk_size": 32, "pad_token_id": None},
    **{"no_rope_layer_interval": 2, "rms_norm_eps": 1e-3},
}
LLAMA4_ROPE = {**LLAMA3, "high_freq_factor": 1.0}
"""Nothing between the frequencies that stay and those that are divided."""
BERT = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 32},
}
MODERNBERT = {
    **{**BERT, "num_hidden_layers": 4, "pad_token_id": None, "architectures": ["ModernBertForMaskedLM"]},
    "hidden_activation": "gelu",
}
T5 = {
    **{"vocab_size": VOCAB, "d_model": 32, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "d_kv": 16},
    **{"d_ff": 48, "relative_attention_max_distance": 20},
}
SEEN = {
    **{"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"image_size": 16, "patch_size": 8},
}
"""Four patches of an image."""
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}


LATENT = {
    **{**SIZES, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 20},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6},
}
LATENT_EXPERTS = {
    **{**LATENT, "num_hidden_layers": 4, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 2},
    **{"num_experts_per_tok": 4, "routed_scaling_factor": 1.5, "n_group": 4, "topk_group": 2},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
DEEPSEEK_YARN = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5},
}
"""With a factor for what is rotated, which that of V2 and V3 have not: both of theirs are equal."""


STATE_SPACE = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "state_size": 6, "n_groups": 2},
}


HYBRID = {
    **{**SIZES, "head_dim": 16, "ssm_state_size": 6, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 256},
    "num_hidden_layers": 4,
}


def configurations() -> dict[str, Any]:
    """By name: every family, grouped queries, tied and untied, halves of unequal length."""
    return {
        "gpt2": transformers.GPT2Config(**GPT2, resid_pdrop=0.0, attn_pdrop=0.0),
        "gpt2-untied": transformers.GPT2Config(**GPT2, n_inner=40, tie_word_embeddings=False),
        "llama2": transformers.LlamaConfig(**{**SIZES, "num_key_value_heads": 4}),
        "llama3": transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True),
        "mistral": transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=5),
        "ministral": transformers.MinistralConfig(
            **{**SIZES, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 5},
            layer_types=["full_attention", *["sliding_attention"] * 3],
        ),
        "qwen2-windows": transformers.Qwen2Config(
            **{**SIZES, "num_hidden_layers": 4}, use_sliding_window=True, sliding_window=5, max_window_layers=3
        ),
        "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=5, rope_theta=10000.0),
        "qwen3-moe": transformers.Qwen3MoeConfig(
            **SIZES, head_dim=16, moe_intermediate_size=40, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
        ),
        "qwen3-moe-dense-layers": transformers.Qwen3MoeConfig(
            **{**SIZES, "num_hidden_layers": 4}, head_dim=16, **FEW_EXPERTS, decoder_sparse_step=2, mlp_only_layers=[1]
        ),
        "qwen2-moe": transformers.Qwen2MoeConfig(**SIZES, **FEW_EXPERTS, shared_expert_intermediate_size=56),
        "qwen2-moe-no-biases": transformers.Qwen2MoeConfig(
            **SIZES, **FEW_EXPERTS, shared_expert_intermediate_size=56, norm_topk_prob=True, qkv_bias=False
        ),
        "glm4-moe": transformers.Glm4MoeConfig(
            **SIZES, **GROUPED_EXPERTS, first_k_dense_replace=1, use_qk_norm=True, attention_bias=True
        ),
        "glm4-moe-all-routed": transformers.Glm4MoeConfig(
            **{**SIZES, **GROUPED_EXPERTS, "n_group": 1, "topk_group": 1}, first_k_dense_replace=0, head_dim=16
        ),
        "olmoe": transformers.OlmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2),
        "olmoe-normalized": transformers.OlmoeConfig(
            **{**SIZES, "num_key_value_heads": 4}, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
        ),
        "granite-moe": transformers.GraniteMoeConfig(**SIZES, **FACTORS, num_local_experts=4, tie_word_embeddings=True),
        "granite-moe-shared": transformers.GraniteMoeSharedConfig(
            **SIZES, **FACTORS, num_local_experts=4, num_experts_per_tok=3, shared_intermediate_size=56
        ),
        "granite-moe-without-shared": transformers.GraniteMoeSharedConfig(**SIZES, head_dim=16),
        "llama4": transformers.Llama4TextConfig(
            **{
                **SIZES,
                **LLAMA4,
                "num_hidden_layers": 4,
                "attention_chunk_size": 6,
            },  # three chunks, of which the last ends as new tokens are written
            **{"interleave_moe_layer_step": 2, "rope_parameters": LLAMA4_ROPE},
        ),
        "llama4-all-routed": transformers.Llama4TextConfig(
            **{**SIZES, **LLAMA4, "num_hidden_layers": 4, "attn_temperature_tuning": False, "use_qk_norm": False},
            **{"no_rope_layers": [1, 1, 0, 1], "tie_word_embeddings": True, "layer_types": ["full_attention"] * 4},
        ),
        "llama4-listed": transformers.Llama4TextConfig(
            **{**SIZES, **LLAMA4}, moe_layers=[1], no_rope_layers=[1, 1], rope_parameters=LLAMA3
        ),
        "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
        "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16),
        "gemma": transformers.GemmaConfig(**SIZES, head_dim=16),
        "gemma2": transformers.Gemma2Config(
            **{**SIZES, "num_hidden_layers": 4}, head_dim=16, sliding_window=5, query_pre_attn_scalar=20
        ),
        "gemma3": transformers.Gemma3TextConfig(
            **{**SIZES, "num_hidden_layers": 6, "num_key_value_heads": 1},
            **{"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 12},
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        ),
        "gemma3-capped": transformers.Gemma3TextConfig(
            **{**SIZES, "num_hidden_layers": 4},
            **{"head_dim": 16, "sliding_window": 3, "sliding_window_pattern": 2},
            rope_parameters={
                "full_attention": {**YARN, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            final_logit_softcapping=15.0,
        ),
        "phi3": transformers.Phi3Config(**SIZES, sliding_window=5, partial_rotary_factor=0.5, pad_token_id=0),
        "starcoder2-no-biases": transformers.Starcoder2Config(**SIZES, use_bias=False, hidden_act="gelu"),
        "starcoder2": transformers.Starcoder2Config(**SIZES, sliding_window=5, rope_theta=9.4420358813),
        "stablelm": transformers.StableLmConfig(**SIZES, use_qkv_bias=True),
        "deepseek-v2-lite": transformers.DeepseekV2Config(
            **{**LATENT_EXPERTS, "q_lora_rank": None, "n_group": 1, "topk_group": 1}, first_k_dense_replace=1
        ),
        "deepseek-v2": transformers.DeepseekV2Config(
            **LATENT_EXPERTS,
            **{"topk_method": "group_limited_greedy", "first_k_dense_replace": 0},
            rope_parameters={**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        ),
        "deepseek-v3": transformers.DeepseekV3Config(
            **LATENT_EXPERTS, first_k_dense_replace=3, rope_parameters=DEEPSEEK_YARN
        ),
        "deepseek-dense": transformers.DeepseekV2Config(
            **LATENT, first_k_dense_replace=2, rope_parameters=DEEPSEEK_YARN
        ),
        "gpt-oss": transformers.GptOssConfig(
            **{**SIZES, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 5, "pad_token_id": 0},
            **{"num_local_experts": 8, "num_experts_per_tok": 3, "swiglu_limit": 0.7},
            rope_parameters={
                **{"rope_type": "yarn", "rope_theta": 150.0, "factor": 4.0, "original_max_position_embeddings": 16},
                **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
            },
        ),
        "gpt-oss-mxfp4": transformers.GptOssConfig(
            **{**SIZES, "intermediate_size": 64, "head_dim": 16, "sliding_window": 5, "pad_token_id": 0},
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {"rope_type": "default"}},
        ),
        "nemotron": transformers.NemotronConfig(**SIZES, head_dim=16),
        "mamba2": transformers.Mamba2Config(**STATE_SPACE, num_heads=8, expand=2, pad_token_id=0),
        "mamba2-wide": transformers.Mamba2Config(
            **STATE_SPACE, num_heads=12, expand=3, tie_word_embeddings=True, residual_in_fp32=False, pad_token_id=0
        ),
        "nemotron-h": transformers.NemotronHConfig(**HYBRID, hybrid_override_pattern="M-*M", mamba_num_heads=10),
        "nemotron-h-gelu": transformers.NemotronHConfig(
            **HYBRID,
            **{"hybrid_override_pattern": "MM*-", "mamba_num_heads": 8, "mlp_hidden_act": "gelu_pytorch_tanh"},
        ),
        "nemotron-h-moe": transformers.NemotronHConfig(
            **{**HYBRID, "hybrid_override_pattern": "ME*E", "mamba_num_heads": 8, "n_routed_experts": 8},
            **{"moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40, "num_experts_per_tok": 2},
            **{"routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2},
        ),
        "nemotron-h-moe-dense-layers": transformers.NemotronHConfig(
            **{**HYBRID, "hybrid_override_pattern": "M-*E", "mamba_num_heads": 8, "n_routed_experts": 4},
            **{"moe_intermediate_size": 56, "moe_shared_expert_intermediate_size": 24, "num_experts_per_tok": 3},
        ),
        "granite": transformers.GraniteConfig(**SIZES, **FACTORS, tie_word_embeddings=True),
        "smollm3": transformers.SmolLM3Config(
            **{**SIZES, "num_hidden_layers": 4, "no_rope_layer_interval": 2, "pad_token_id": 0},
            rope_parameters={**YARN, "rope_theta": 2000000.0},
        ),
        "smollm3-rotated": transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 1], pad_token_id=0),
        "glm4": transformers.Glm4Config(**SIZES, head_dim=16, pad_token_id=0),
        "glm4-no-biases": transformers.Glm4Config(
            **SIZES, head_dim=8, attention_bias=False, partial_rotary_factor=1.0, pad_token_id=0
        ),
        "glm": transformers.GlmConfig(**SIZES, head_dim=16, pad_token_id=0),
        "gpt-neox": transformers.GPTNeoXConfig(**FEWER),
        "gpt-neox-sequential": transformers.GPTNeoXConfig(
            **FEWER, use_parallel_residual=False, hidden_act="gelu_new", tie_word_embeddings=True
        ),
        "falcon": transformers.FalconConfig(**FALCON),
        "falcon-heads": transformers.FalconConfig(**FALCON, multi_query=False, bias=True, activation="gelu_new"),
        "falcon-one-norm": transformers.FalconConfig(
            **{**FALCON, **NEW_FALCON}, num_ln_in_parallel_attn=1, ffn_hidden_size=40
        ),
        "falcon-two-norms": transformers.FalconConfig(**FALCON, **NEW_FALCON, tie_word_embeddings=False),
        "cohere": transformers.CohereConfig(
            **{**SIZES, "num_key_value_heads": 4}, logit_scale=0.7, tie_word_embeddings=False, pad_token_id=0
        ),
        "cohere-norms": transformers.CohereConfig(
            **SIZES, head_dim=16, use_qk_norm=True, logit_scale=0.4, rope_parameters=LLAMA3, pad_token_id=0
        ),
        "cohere2": transformers.Cohere2Config(
            **{**SIZES, "num_hidden_layers": 4, "logit_scale": 0.4, "pad_token_id": 0},
            **{"sliding_window": 5, "sliding_window_pattern": 2},
        ),
        "cohere2-windows": transformers.Cohere2Config(
            **{**SIZES, "head_dim": 16, "logit_scale": 0.4, "pad_token_id": 0},
            **{"sliding_window": 5, "layer_types": ["sliding_attention"] * 2},
        ),
        "olmo2": transformers.Olmo2Config(**SIZES, head_dim=16),
        "olmo3": transformers.Olmo3Config(
            **{**SIZES, "num_hidden_layers": 4, "sliding_window": 5},
            rope_parameters={
                "full_attention": {**YARN, "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            },
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "stablelm-no-biases": transformers.StableLmConfig(**SIZES, partial_rotary_factor=1.0, qk_layernorm=True),
        "stablelm-one-norm": transformers.StableLmConfig(**SIZES, use_parallel_residual=True, qk_layernorm=True),
        "megatron-bert": transformers.MegatronBertConfig(**BERT),
        "bert": transformers.BertConfig(**BERT),
        "bert-masked": transformers.BertConfig(**BERT, type_vocab_size=3, architectures=["BertForMaskedLM"]),
        "megatron-masked": transformers.MegatronBertConfig(**BERT, architectures=["MegatronBertForMaskedLM"]),
        "bert-untied": transformers.BertConfig(**BERT, tie_word_embeddings=False),
        "roberta": transformers.RobertaConfig(**BERT, type_vocab_size=1, pad_token_id=2),
        "roberta-untied": transformers.RobertaConfig(**BERT, tie_word_embeddings=False, pad_token_id=2),
        "t5": transformers.T5Config(**T5),
        "t5-v1.1": transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        "mt5": transformers.MT5Config(**T5),
        "llava": llava(transformers.LlamaConfig(**SIZES), SEEN),
        "llava-qwen2": llava(
            transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
            {**SEEN, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
            vision_feature_layer=3,
        ),
        "gemma3-images": transformers.Gemma3Config(
            text_config=transformers.Gemma3TextConfig(
                **{**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 1},
                **{"head_dim": 16, "sliding_window": 3, "sliding_window_pattern": 2},
            ),
            vision_config=transformers.SiglipVisionConfig(**{**SEEN, "patch_size": 4, "vision_use_head": False}),
            **{"mm_tokens_per_image": 4, "image_token_index": VOCAB - 1},
        ),
        "qwen2.5-vl": transformers.Qwen2_5_VLConfig(
            text_config={**SIZES, "hidden_size": 64, "rope_parameters": native_images.POSITIONS},
            vision_config=native_images.VISION,
            image_token_id=VOCAB - 1,
        ),
        "qwen3-next": transformers.Qwen3NextConfig(
            **{**SIZES, "num_hidden_layers": 4},
            **{**FEW_EXPERTS, **DELTA, "shared_expert_intermediate_size": 56, "mlp_only_layers": [1]},
            layer_types=["linear_attention", "full_attention"] * 2,
        ),
        "qwen3-next-uneven": transformers.Qwen3NextConfig(
            **{**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4},
            **{**FEW_EXPERTS, **DELTA, "shared_expert_intermediate_size": 24, "norm_topk_prob": False},
            rope_parameters={**YARN, "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            layer_types=[f"{kind}_attention" for kind in ("full", "linear", "linear", "full")],
        ),
        "modernbert": transformers.ModernBertConfig(**MODERNBERT, local_attention=6),
        "modernbert-biases": transformers.ModernBertConfig(
            **{**MODERNBERT, "local_attention": 9, "tie_word_embeddings": False, "hidden_activation": "silu"},
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
            layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        ),
        # Last, so that the others keep their random numbers.
        "phi3-longrope": transformers.Phi3Config(
            **SIZES, **LONGROPE, original_max_position_embeddings=32, pad_token_id=0
        ),
        "phi3-longrope-long": transformers.Phi3Config(
            **SIZES, **LONGROPE, original_max_position_embeddings=12, pad_token_id=0
        ),
        "phi4-mini": transformers.Phi3Config(
            **SIZES,
            rope_parameters={
                **{"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                **{"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]},
            },
            original_max_position_embeddings=12,
            pad_token_id=0,
        ),
    }


def llava(text: Any, sight: dict[str, Any], **more: Any) -> Any:
    """A decoder that sees, whose last token stands for images."""
    vision = transformers.CLIPVisionConfig(**sight)
    both = {"vision_config": vision, "text_config": text}
    return transformers.LlavaConfig(**both, image_token_index=VOCAB - 1, image_seq_length=4, **more)
