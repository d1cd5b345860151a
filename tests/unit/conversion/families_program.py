"""Models of transformers with random weights: `make` saves and imports them, all or those that are named; `check`
compares what was exported.

Both work on a folder of folders, one for each family: `theirs`, `run`, `logits.pt`, of decoders `greedy.pt`, and for
each layout `out-LAYOUT`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.configuration import read_config, to_model
from orchestrator.conversion.hugging_face.families.registry import family_of_folder
from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.conversion.hugging_face.hf_import import import_weights
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved

VOCAB, LENGTH, NEW = 101, 16, 12
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
            **{**SIZES, **LLAMA4, "num_hidden_layers": 4}, interleave_moe_layer_step=2, rope_parameters=LLAMA4_ROPE
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
            final_logit_softcapping=15.0,
        ),
        "phi3": transformers.Phi3Config(**SIZES, sliding_window=5, partial_rotary_factor=0.5, pad_token_id=0),
        "starcoder2-no-biases": transformers.Starcoder2Config(**SIZES, use_bias=False, hidden_act="gelu"),
        "starcoder2": transformers.Starcoder2Config(**SIZES, sliding_window=5),
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
            **{"hybrid_override_pattern": "*-MM", "mamba_num_heads": 8, "mlp_hidden_act": "gelu_pytorch_tanh"},
        ),
        "granite": transformers.GraniteConfig(**SIZES, **FACTORS, tie_word_embeddings=True),
        "smollm3": transformers.SmolLM3Config(
            **{**SIZES, "num_hidden_layers": 4}, no_rope_layer_interval=2, pad_token_id=0
        ),
        "smollm3-rotated": transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 1], pad_token_id=0),
        "glm4": transformers.Glm4Config(**SIZES, head_dim=16, pad_token_id=0),
        "glm4-no-biases": transformers.Glm4Config(
            **SIZES, head_dim=8, attention_bias=False, partial_rotary_factor=1.0, pad_token_id=0
        ),
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
        "olmo2": transformers.Olmo2Config(**SIZES, head_dim=16),
        "stablelm-no-biases": transformers.StableLmConfig(**SIZES, partial_rotary_factor=1.0),
        "megatron-bert": transformers.MegatronBertConfig(**BERT),
        "bert": transformers.BertConfig(**BERT),
        "bert-masked": transformers.BertConfig(**BERT, type_vocab_size=3, architectures=["BertForMaskedLM"]),
        "megatron-masked": transformers.MegatronBertConfig(**BERT, architectures=["MegatronBertForMaskedLM"]),
        "bert-untied": transformers.BertConfig(**BERT, tie_word_embeddings=False),
        "t5": transformers.T5Config(**T5),
        "t5-v1.1": transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        "mt5": transformers.MT5Config(**T5),
        "llava": llava(transformers.LlamaConfig(**SIZES), SEEN),
        "llava-qwen2": llava(
            transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
            {**SEEN, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
            vision_feature_layer=3,
        ),
        "qwen3-next": transformers.Qwen3NextConfig(
            **{**SIZES, "num_hidden_layers": 4},
            **{**FEW_EXPERTS, **DELTA, "shared_expert_intermediate_size": 56, "mlp_only_layers": [1]},
            layer_types=["linear_attention", "full_attention"] * 2,
        ),
        "qwen3-next-uneven": transformers.Qwen3NextConfig(
            **{**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4},
            **{**FEW_EXPERTS, **DELTA, "shared_expert_intermediate_size": 24, "norm_topk_prob": False},
            layer_types=[f"{kind}_attention" for kind in ("full", "linear", "linear", "full")],
        ),
    }


def llava(text: Any, sight: dict[str, Any], **more: Any) -> Any:
    """A decoder that sees, whose last token stands for images."""
    vision = transformers.CLIPVisionConfig(**sight)
    both = {"vision_config": vision, "text_config": text}
    return transformers.LlavaConfig(**both, image_token_index=VOCAB - 1, image_seq_length=4, **more)


def auto(config: Any) -> Any:
    """The class of transformers that a model of a configuration is loaded with."""
    if config.model_type == "llava":
        return transformers.AutoModelForImageTextToText
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    if "BertForMaskedLM" in str(config.architectures):
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForPreTraining if "bert" in config.model_type else transformers.AutoModelForCausalLM


def logits(model: Any) -> torch.Tensor:
    """What a model says of `ids`: logits [2, s, v], and behind them those of other heads."""
    with torch.no_grad():
        if model.config.model_type == "llava":
            seen: torch.Tensor = model(seeing_ids(), pixel_values=scaled(images()[0])).logits
            return seen
        if "bert" not in model.config.model_type:
            more = {"decoder_input_ids": ids().flip(0)} if model.config.is_encoder_decoder else {}
            found: torch.Tensor = model(ids(), **more).logits
            return found
        said = model(ids(), token_type_ids=ids() % 2)
        if "logits" in said:
            return said.logits.flatten()
        return torch.cat([said.prediction_logits.flatten(), said.seq_relationship_logits.flatten()])


def greedy(model: Any) -> torch.Tensor:
    """The most likely tokens after `ids`, one after the other: [2, s + NEW]."""
    tokens = ids()
    with torch.no_grad():
        for _ in range(NEW):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(dim=-1)], dim=1)
    return tokens


def ids() -> torch.Tensor:
    """Tokens [2, s]."""
    return torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % VOCAB


def seeing_ids() -> torch.Tensor:
    """Tokens [2, s]: the first sequence has two images, with text around them, and the second has none."""
    found = ids().clone()
    found[found == VOCAB - 1] = 0
    found[0, 1:5] = found[0, 7:11] = VOCAB - 1
    return found


def images() -> torch.Tensor:
    """Pixels of as many images as each sequence may have, [2, n, 3, 16, 16], uint8."""
    return (torch.arange(2 * 2 * 3 * 256).reshape(2, 2, 3, 16, 16) * 37 % 251).to(torch.uint8)


def scaled(pixels: torch.Tensor) -> torch.Tensor:
    """As transformers' processor of CLIP scales them."""
    colours = (transformers.image_utils.OPENAI_CLIP_MEAN, transformers.image_utils.OPENAI_CLIP_STD)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in colours)
    return (pixels / 255 - mean) / deviation


def make(folder: Path, *names: str) -> None:
    """Save the models, and import each as a run."""
    torch.manual_seed(1)
    for name, config in configurations().items():
        if names and name not in names:
            continue
        theirs = auto(config).from_config(config, attn_implementation="eager").eval()
        own_output = name == "t5-v1.1"
        if own_output:  # as its published files have it; transformers makes none
            theirs.lm_head.weight = torch.nn.Parameter(torch.zeros_like(theirs.shared.weight))
        with torch.no_grad():
            for kind, parameter in theirs.named_parameters():
                norm = "bias" not in kind and ("norm" in kind.lower() or "ln_" in kind or "ln." in kind)
                # T5 does not divide scores by the square root of a head's width: its queries are that much smaller.
                scale = 0.2 / 4 if kind.endswith("Attention.q.weight") else 0.2
                # What is divided by its length must be more than rounding.
                scale = 1.0 if kind.endswith("conv1d.weight") else scale
                is_centred = config.model_type == "qwen3_next" and "linear_attn" not in kind
                parameter.copy_((1.0 if norm and not is_centred else 0.0) + scale * torch.randn_like(parameter))
            for kind, buffer in theirs.named_buffers():
                if kind.endswith("e_score_correction_bias"):
                    buffer.copy_(0.2 * torch.randn_like(buffer))
            if name == "bert-untied":  # of two biases it computes with the other
                theirs.cls.predictions.bias.copy_(theirs.cls.predictions.decoder.bias)
        packed = _packed(theirs) if name == "gpt-oss-mxfp4" else {}
        torch.save(logits(theirs), _made(folder / name) / "logits.pt")
        if auto(config) is transformers.AutoModelForCausalLM:
            torch.save(greedy(theirs), folder / name / "greedy.pt")
        torch.save([seeing_ids(), images()], folder / name / "seen.pt")
        # Several files: an index, and weights of one layer in two of them.
        theirs.save_pretrained(folder / name / "theirs", max_shard_size="30KB")
        if packed:
            _replace_packed(folder / name / "theirs", packed)
        found = read_config(folder / name / "theirs")
        if own_output:
            found["tie_word_embeddings"] = False
            (folder / name / "theirs" / "config.json").write_text(json.dumps(found))
        family = family_of_folder(folder / name / "theirs")
        model = to_model(found, family)
        hybrid = model.get("architecture") == "mamba"
        job = JobSpec.model_validate(
            {
                **{"name": name, "model": model, "data": {"random_tokens": True}},
                **{"batch": {"global_batch_size": 2}, "optimizer": {"lr": 1e-5}, "schedule": {"train_iters": 1}},
                # A rule keeps hybrids off the CPU; it does not know the stubs of `layout_program`.
                **{"precision": {"dtype": "fp32"}, "runtime": {} if hybrid else {"device": "cpu"}},
            }
        )
        run = RunDir(_made(folder / name / "run"))
        run.path.joinpath("resolved.json").write_text(dump_resolved(job))
        import_weights(folder / name / "theirs", job, family, run.checkpoint(0), threads=2)


def _packed(model: Any) -> dict[str, torch.Tensor]:
    """Random matrices of experts in MXFP4, by the names of gpt-oss's published files; the model gets them."""
    found = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = parameter.shape
            blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(121, 126, (experts, outputs, inputs // 32), dtype=torch.uint8)
            parameter.data.copy_(convert_moe_packed_tensors(blocks, scales))
            found |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return found


def _replace_packed(folder: Path, packed: dict[str, torch.Tensor]) -> None:
    """Their files with matrices of experts in MXFP4."""
    weights = {key: value for key, value in _weights(folder).items() if f"{key}_blocks" not in packed}
    for file in [*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"]:
        file.unlink()
    save_file({**weights, **packed}, folder / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens", "lm_head"]}
    config = {**read_config(folder), "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def _unpacked(came: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As transformers reads them."""
    found = {}
    for key, tensor in came.items():
        name = key.removesuffix("_blocks")
        if name != key:
            found[name] = convert_moe_packed_tensors(tensor, came[f"{name}_scales"])
        elif not key.endswith("_scales"):
            found[key] = tensor
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check(folder: Path) -> dict[str, dict[str, Any]]:
    """For each family and each layout's checkpoint: whether the weights are bitwise those that came, and for one
    export the largest difference of the logits that AutoModelForCausalLM computes from it, and of ours.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, config in configurations().items():
        home = folder / name
        if not home.exists():  # another was asked for
            continue
        job = load_resolved(home / "run" / "resolved.json")
        came, entry = _as_written(name, _weights(home / "theirs")), {}
        for checkpoint in sorted(home.glob("layout-*")):
            target = home / checkpoint.name.replace("layout", "out")
            export(checkpoint, job, target, most_bytes=20_000, dtype=None, tokenizer="no", threads=2)
            went = _weights(target)
            entry[checkpoint.name] = came.keys() == went.keys() and all(torch.equal(came[k], went[k]) for k in came)
            entry["files"] = len(list(target.glob("*.safetensors")))
        loaded = auto(config).from_pretrained(target, attn_implementation="eager").eval()
        expected = torch.load(home / "logits.pt")
        entry["theirs"] = (logits(loaded) - expected).abs().max().item()
        entry["ours"] = (torch.load(home / "ours.pt") - expected).abs().max().item()
        if (home / "greedy.pt").exists():
            wrote = [torch.equal(torch.load(path), torch.load(home / "greedy.pt")) for path in home.glob("wrote-*.pt")]
            entry["greedy"] = wrote
        if (home / "losses.pt").exists():
            probabilities = expected.log_softmax(2).gather(2, seeing_ids().roll(-1, 1).unsqueeze(2)).squeeze(2)
            entry["losses"] = (torch.load(home / "losses.pt") + probabilities).abs().max().item()
        entry["spread"] = expected.std().item()
        entry["class"] = type(loaded).__name__
        found[name] = entry
    return found


def _as_written(name: str, came: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of one in MXFP4: in bf16. Of one that sees: under the names that all versions of transformers read, without the
    layers whose output is not taken, and the norm behind them as it does nothing.
    """
    if "llava" not in name:
        return _unpacked(came)
    tower, found = "vision_tower.vision_model.", {}
    for key, tensor in came.items():
        key = key.replace("vision_tower.", tower)
        if name == "llava" and key.startswith(f"{tower}encoder.layers.2."):
            continue
        if key.startswith(f"{tower}post_layernorm."):
            tensor = torch.full_like(tensor, float(key.endswith("weight")))
        found[key] = tensor
    return found


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return {key: value for file in folder.glob("*.safetensors") for key, value in load_file(file).items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), *sys.argv[3:])
    else:
        print(json.dumps(check(Path(sys.argv[2]))))
