"""DeepSeek V2 and V3 without experts: a Llama with latent attention."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.conversion.hugging_face.families.llama import (
    ATTENTION,
    DEFAULTS,
    FIRST,
    FIXED,
    LLAMA,
    REST,
    SIZES,
    THEIR_ATTENTION,
)
from orchestrator.models.blocks.registry import LATENT
from orchestrator.models.blocks.weights import Rule

_EMBEDDING, _ = FIRST
_NORM_EPSILON = 1e-6
_ATTENTION = (
    Rule(f"{ATTENTION}linear_kv_down_proj.layer_norm_weight", ("model.layers.{n}.input_layernorm.weight",)),
    Rule(f"{ATTENTION}linear_q_proj.weight", (f"{THEIR_ATTENTION}q_proj.weight",), unless="q_lora_rank"),
    Rule(f"{ATTENTION}linear_q_down_proj.weight", (f"{THEIR_ATTENTION}q_a_proj.weight",), only_with="q_lora_rank"),
    Rule(f"{ATTENTION}q_layernorm.weight", (f"{THEIR_ATTENTION}q_a_layernorm.weight",), only_with="q_lora_rank"),
    Rule(f"{ATTENTION}linear_q_up_proj.weight", (f"{THEIR_ATTENTION}q_b_proj.weight",), only_with="q_lora_rank"),
    Rule(f"{ATTENTION}linear_kv_down_proj.weight", (f"{THEIR_ATTENTION}kv_a_proj_with_mqa.weight",)),
    Rule(f"{ATTENTION}kv_layernorm.weight", (f"{THEIR_ATTENTION}kv_a_layernorm.weight",)),
    Rule(f"{ATTENTION}linear_kv_up_proj.weight", (f"{THEIR_ATTENTION}kv_b_proj.weight",)),
)
_EXPERTS = frozenset(
    {
        *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "num_experts_per_tok", "moe_layer_freq"),
        *("routed_scaling_factor", "n_group", "topk_group", "topk_method", "norm_topk_prob", "scoring_func"),
        *("aux_loss_alpha", "seq_aux", "ep_size"),
    }
)
"""Keys that are for layers with experts, of which there are none."""

DEEPSEEK_V2 = replace(
    LLAMA,
    name="DeepSeek V2",
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    rules=(_EMBEDDING, *_ATTENTION, *REST),
    sizes={
        **{field: key for field, key in SIZES.items() if field not in ("kv_channels", "norm_epsilon")},
        **{"kv_lora_rank": "kv_lora_rank", "q_lora_rank": "q_lora_rank", "qk_head_dim": "qk_nope_head_dim"},
        **{"qk_pos_emb_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim"},
    },
    # transformers gives the norms of latents no other epsilon than this.
    fixed={**FIXED, "qk_layernorm": True, "norm_epsilon": _NORM_EPSILON},
    constants={**LLAMA.constants, "rms_norm_eps": _NORM_EPSILON},
    defaults={
        **{key: value for key, value in DEFAULTS.items() if key != "rms_norm_eps"},
        **{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        "v_head_dim": 128,
    },
    repeated={"first_k_dense_replace": "num_hidden_layers"},
    aliases={"first_k_dense_replace": "num_hidden_layers"},
    ignored=frozenset(("head_dim", "qk_head_dim")) | _EXPERTS,
    attention=LATENT.name,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    name="DeepSeek V3",
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    constants={**LLAMA.constants, "rms_norm_eps": _NORM_EPSILON, "rope_interleave": True},
    defaults={**DEEPSEEK_V2.defaults, "max_position_embeddings": 4096},
    ignored=DEEPSEEK_V2.ignored | {"num_mtp_layers", "num_nextn_predict_layers"},
)
