"""Decoders of transformers with random weights beside ours with the same ones; prints {family: differences} as JSON.

For each family the largest difference of the logits of the whole sequence ("logits"), and of ours with a key/value
cache, prompts of different lengths first and then one token after the other, from ours without ("cache").
"""

from __future__ import annotations

import json
import math
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from support.training import tiny_job
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from orchestrator.inference.generation.decoder import DecoderRunner
from orchestrator.inference.loading import without_training
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.models.blocks.grouped_query_attention.rope_scaling import RopeScaling, attention_factor
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.layers.attention import scores
from orchestrator.runtime.layers.attention.rotary_frequencies import scaled_frequencies
from orchestrator.runtime.network.model import build_chunks, transformer_config
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import seed_everything, start_process_groups, stop_process_groups
from orchestrator.spec.generation import Generation

Weights = dict[str, torch.Tensor]
VOCAB, LENGTH, PROMPT = 96, 24, 13
SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
THEIRS = {
    **SIZES,
    "intermediate_size": 80,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
OURS = {
    **{"num_layers": 2, "hidden_size": 48, "num_attention_heads": 6, "num_query_groups": 3, "ffn_hidden_size": 80},
    **{"seq_length": LENGTH, "vocab_size": VOCAB, "normalization": "RMSNorm", "activation": "swiglu"},
    **{"add_bias_linear": False, "untie_embeddings_and_output_weights": True},
}
ROPE = {"rope_theta": 10000.0}
LONG = {"factor": 4.0, "original_max_position_embeddings": 16}


def families() -> dict[str, tuple[Any, dict[str, Any], Callable[[Weights, Any], Weights]]]:
    """By name: transformers' configuration, our model section, and how weights are renamed."""
    llama = transformers.LlamaConfig
    gemma = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 16}
    tied = {"untie_embeddings_and_output_weights": False}
    return {
        "gpt2": (
            transformers.GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=6, n_positions=32),
            {
                **{"num_layers": 2, "hidden_size": 48, "num_attention_heads": 6, "seq_length": LENGTH},
                **{"vocab_size": VOCAB, "max_position_embeddings": 32, "position_embedding_type": "learned_absolute"},
                **{"activation": "gelu_tanh"},
            },
            of_gpt2,
        ),
        "llama2": (llama(**{**THEIRS, "num_key_value_heads": 6}), {**OURS, "num_query_groups": None}, of_llama),
        "llama3.1": (
            llama(
                **THEIRS,
                rope_parameters={
                    **ROPE,
                    **LONG,
                    "rope_type": "llama3",
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                },
            ),
            {**OURS, "rope_scaling": {**LONG, "type": "llama3"}},
            of_llama,
        ),
        "linear": (
            llama(**THEIRS, rope_parameters={**ROPE, "rope_type": "linear", "factor": 3.0}),
            {**OURS, "rope_scaling": {"type": "linear", "factor": 3.0}},
            of_llama,
        ),
        "yarn": (
            llama(**THEIRS, rope_parameters={**ROPE, **LONG, "rope_type": "yarn"}),
            {**OURS, "rope_scaling": {**LONG, "type": "yarn"}},
            of_llama,
        ),
        "mistral": (
            transformers.MistralConfig(**THEIRS, sliding_window=5, head_dim=8),
            {**OURS, "sliding_window": 5},
            of_llama,
        ),
        "qwen2.5": (
            transformers.Qwen2Config(**{**THEIRS, "rms_norm_eps": 1e-6}, tie_word_embeddings=True),
            {**OURS, **tied, "add_qkv_bias": True, "norm_epsilon": 1e-6},
            of_llama,
        ),
        "qwen2.5 with windows": (
            transformers.Qwen2Config(
                **THEIRS,
                use_sliding_window=True,
                sliding_window=4,
                layer_types=["sliding_attention", "full_attention"],
            ),
            {**OURS, "add_qkv_bias": True, "sliding_window": 4, "window_attn_skip_freq": 2},
            of_llama,
        ),
        "qwen3": (
            transformers.Qwen3Config(**{**THEIRS, "rms_norm_eps": 1e-6}, head_dim=16, tie_word_embeddings=False),
            {**OURS, "kv_channels": 16, "qk_layernorm": True, "norm_epsilon": 1e-6},
            of_llama,
        ),
        "gemma": (
            transformers.GemmaConfig(**{**THEIRS, **gemma, "num_key_value_heads": 1, "rms_norm_eps": 1e-6}),
            {
                **{**OURS, **tied, "num_query_groups": 1, "kv_channels": 16, "activation": "geglu"},
                **{"apply_layernorm_1p": True, "scale_embeddings": True, "norm_epsilon": 1e-6},
            },
            of_llama,
        ),
        "nemotron": (
            transformers.NemotronConfig(
                **THEIRS, head_dim=16, rope_parameters={**ROPE, "rope_type": "default", "partial_rotary_factor": 0.5}
            ),
            {
                **{**OURS, "kv_channels": 16, "activation": "squared_relu", "normalization": "LayerNorm"},
                **{"apply_layernorm_1p": True, "rotary_percent": 0.5},
            },
            of_llama,
        ),
        "yarn of a part": (
            transformers.NemotronConfig(
                **THEIRS,
                head_dim=16,
                rope_parameters={**ROPE, **LONG, "rope_type": "yarn", "partial_rotary_factor": 0.5},
            ),
            {
                **{**OURS, "kv_channels": 16, "activation": "squared_relu", "normalization": "LayerNorm"},
                **{"apply_layernorm_1p": True, "rotary_percent": 0.5, "rope_scaling": {**LONG, "type": "yarn"}},
            },
            of_llama,
        ),
        "yarn of some layers": (
            transformers.SmolLM3Config(
                **{**THEIRS, "no_rope_layers": [1, 0], "pad_token_id": 0, "tie_word_embeddings": False},
                rope_parameters={**ROPE, **LONG, "rope_type": "yarn"},
            ),
            {**OURS, "no_rope_freq": 2, "rope_scaling": {**LONG, "type": "yarn"}},
            of_llama,
        ),
        "mpt": (
            transformers.MptConfig(vocab_size=VOCAB, d_model=48, n_layers=2, n_heads=6, max_seq_len=64),
            {
                **{"num_layers": 2, "hidden_size": 48, "num_attention_heads": 6, "seq_length": LENGTH},
                **{"vocab_size": VOCAB, "add_bias_linear": False, "position_embedding_type": "alibi"},
            },
            of_mpt,
        ),
    }


def of_llama(theirs: Weights, model: Any) -> Weights:
    """Llama, Mistral, Qwen, Gemma and Nemotron name their weights alike."""
    renamed = {
        "embedding.word_embeddings.weight": theirs["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": theirs["model.norm.weight"],
    }
    if model.untie_embeddings_and_output_weights:
        renamed["output_layer.weight"] = theirs["lm_head.weight"]
    if "model.norm.bias" in theirs:
        renamed["decoder.final_layernorm.bias"] = theirs["model.norm.bias"]
    for layer in range(model.num_layers):
        source, target = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        plain = {
            "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "pre_mlp_layernorm",
            "self_attn.q_norm": "self_attention.q_layernorm",
            "self_attn.k_norm": "self_attention.k_layernorm",
            "self_attn.o_proj": "self_attention.linear_proj",
            "mlp.down_proj": "mlp.linear_fc2",
        }
        for theirs_name, ours_name in plain.items():
            for kind in ("weight", "bias"):
                if f"{source}{theirs_name}.{kind}" in theirs:
                    renamed[f"{target}{ours_name}.{kind}"] = theirs[f"{source}{theirs_name}.{kind}"]
        for kind in ("weight", "bias"):
            parts = [theirs.get(f"{source}self_attn.{name}_proj.{kind}") for name in "qkv"]
            if parts[0] is not None:
                renamed[f"{target}self_attention.linear_qkv.{kind}"] = qkv(parts, model)
        up = [
            theirs[f"{source}mlp.{name}.weight"]
            for name in ("gate_proj", "up_proj")
            if f"{source}mlp.{name}.weight" in theirs
        ]
        renamed[f"{target}mlp.linear_fc1.weight"] = torch.cat(up)
    return renamed


def of_gpt2(theirs: Weights, model: Any) -> Weights:
    """GPT-2 stores its matrices transposed."""
    renamed = {
        "embedding.word_embeddings.weight": theirs["transformer.wte.weight"],
        "embedding.position_embeddings.weight": theirs["transformer.wpe.weight"],
    }
    names = {"ln_1": "input_layernorm", "ln_2": "pre_mlp_layernorm", "attn.c_proj": "self_attention.linear_proj"}
    names |= {"mlp.c_fc": "mlp.linear_fc1", "mlp.c_proj": "mlp.linear_fc2", "attn.c_attn": "self_attention.linear_qkv"}
    for kind in ("weight", "bias"):
        renamed[f"decoder.final_layernorm.{kind}"] = theirs[f"transformer.ln_f.{kind}"]
        for layer in range(model.num_layers):
            for theirs_name, ours_name in names.items():
                value = theirs[f"transformer.h.{layer}.{theirs_name}.{kind}"].T
                value = qkv(value.chunk(3), model) if theirs_name == "attn.c_attn" else value
                renamed[f"decoder.layers.{layer}.{ours_name}.{kind}"] = value
    return renamed


def of_mpt(theirs: Weights, model: Any) -> Weights:
    """MPT has no biases; ours are 0 in the norms."""
    renamed = {"embedding.word_embeddings.weight": theirs["transformer.wte.weight"]}
    renamed["decoder.final_layernorm.weight"] = theirs["transformer.norm_f.weight"]
    names = {"norm_1": "input_layernorm", "norm_2": "pre_mlp_layernorm", "attn.out_proj": "self_attention.linear_proj"}
    names |= {"ffn.up_proj": "mlp.linear_fc1", "ffn.down_proj": "mlp.linear_fc2"}
    for layer in range(model.num_layers):
        source, target = f"transformer.blocks.{layer}.", f"decoder.layers.{layer}."
        for theirs_name, ours_name in names.items():
            renamed[f"{target}{ours_name}.weight"] = theirs[f"{source}{theirs_name}.weight"]
        parts = theirs[f"{source}attn.Wqkv.weight"].chunk(3)
        renamed[f"{target}self_attention.linear_qkv.weight"] = qkv(parts, model)
    return renamed


def qkv(parts: Any, model: Any) -> torch.Tensor:
    """Rows of queries, keys and values, as megatron-core has them: group by group."""
    grouped = [part.view(model.query_groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def compare(
    config: Any, model: dict[str, Any], rename: Callable[[Weights, Any], Weights], device: Any
) -> dict[str, float]:
    """Build both, give ours their weights, and compare."""
    job = tiny_job("parity", model=model)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            centre = 1.0 if "norm" in name and "weight" in name else 0.0
            parameter.copy_(centre + 0.3 * torch.randn_like(parameter) / (1.0 if centre else math.sqrt(8)))
    module = built(job, device)
    weights = rename(theirs.state_dict(), job.model)
    missing = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            missing.pop(name).copy_(value)
    assert all(name.endswith("bias") and rename is of_mpt for name in missing), missing.keys()
    ids = torch.randint(0, VOCAB, (2, LENGTH))
    with torch.no_grad():
        expected, whole = theirs(ids).logits, uncached(module, ids)
    spread = expected.std().item()
    assert spread > 0.1, "logits that say something"
    return {
        "logits": (whole - expected).abs().max().item() / spread,
        "cache": cached(module, job, ids, whole) / spread,
    }


def built(job: Any, device: Any) -> Any:
    """Our network, weights drawn."""
    config = transformer_config(job, device, "torch")
    [module] = build_chunks(job, config, device, "torch", Vocabulary(VOCAB, VOCAB, None), RANKS)
    return module.eval()


def uncached(module: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits [b, s, v]."""
    positions = torch.arange(ids.size(1)).expand_as(ids)
    return module(ids, positions, None)


@torch.no_grad()
def cached(module: Any, job: Any, ids: torch.Tensor, whole: torch.Tensor) -> float:
    """The largest difference of logits with a cache from those of `whole`, [b, s, v], without: after prompts of
    different lengths, after each further token, and after three of each row at once, where wrong ones were read before.
    """
    passes = DecoderRunner(Network(module, job, VOCAB, RANKS, GROUPS, DEVICE))
    places = torch.tensor([PROMPT - 4 * row for row in range(ids.size(0))])
    prompts = [row[:place].tolist() for row, place in zip(ids, places.tolist(), strict=True)]
    asked = [Request(number, prompt, Generation()) for number, prompt in enumerate(prompts)]
    logits = passes.prefill(asked, ids.size(1))
    rows, worst = torch.arange(ids.size(0)), 0.0
    while True:
        assert logits is not None, "there is one stage"
        worst = max(worst, (logits - whole[rows, places - 1]).abs().max().item())
        if places[0] == ids.size(1):
            break
        logits = passes.decode_step(ids[rows, places], places)
        places = places + 1
    several = places[:, None] + torch.arange(-3, 0)
    for tokens in (ids.roll(1, 1), ids):
        logits = passes.verify(tokens.gather(1, several), several)
    assert logits is not None, "there is one stage"
    return max(worst, (logits - whole[rows[:, None], several]).abs().max().item())


def capped(device: Any) -> dict[str, float]:
    """Soft-capped attention beside Gemma 2's, and soft-capped logits with a cache, under ALiBi and under a window."""
    query, key, value = torch.randn(2, 6, 9, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    mask = scores.causal_mask(9, 9, 4, None, torch.bool, torch.device("cpu"))

    class Layer(torch.nn.Module):
        num_key_value_groups = 2

    added = torch.zeros(9, 9).masked_fill(~mask, -math.inf)[None, None]
    expected, _ = eager_attention_forward(Layer(), query, key, value, added, scaling=0.7, softcap=1.5)
    found = scores.attention_by_scores(query, key, value, mask, 0.7, 1.5, None, 0.0).transpose(1, 2)
    differences = {"attention": (found - expected).abs().max().item()}
    ids = torch.randint(0, VOCAB, (2, LENGTH))
    final = {**OURS, "init_method_std": 0.5, "final_logit_softcapping": 20.0}
    for name, more in {
        "alibi": {"position_embedding_type": "alibi"},
        "window": {"sliding_window": 5},
        "all": {},
    }.items():
        jobs = [
            tiny_job("capped", model={**final, **more, **cap}) for cap in ({}, {"attention_logit_softcapping": 0.5})
        ]
        free, module = (built(job, device) for job in jobs)
        with torch.no_grad():
            whole, uncapped = uncached(module, ids), uncached(free, ids)
        assert 10 < whole.abs().max() < 20, "the cap of the logits counts"
        assert (whole - uncapped).abs().max() > 0.1, "the cap of the attention counts"
        differences[f"cache, {name}"] = cached(module, jobs[1], ids, whole)
    return differences


def with_capacity(device: Any) -> float:
    """The largest difference that padding and another row of the batch make, of experts whose training drops tokens."""
    experts = {"num_experts": 4, "moe_router_topk": 2, "moe_aux_loss_coeff": 0.01, "moe_expert_capacity_factor": 0.5}
    job = without_training(tiny_job("experts", model={**OURS, **experts, "init_method_std": 0.1}))
    module, ids = built(job, device), torch.randint(0, VOCAB, (2, LENGTH))
    with torch.no_grad():
        whole = torch.cat([uncached(module, row[None]) for row in ids])
    return cached(module, job, ids, whole) / whole.std().item()


def frequencies(cases: int) -> dict[str, float]:
    """Largest relative difference of rotary frequencies from transformers', and of the factor of attention."""
    draw = random.Random(3)
    differences = {"frequencies": 0.0, "factor": 0.0}
    for number in range(cases):
        kind = ("linear", "llama3", "yarn")[number % 3]
        scaling: dict[str, Any] = {"factor": draw.choice([1.0, 2.0, 7.5, 40.0])}
        if kind != "linear":
            scaling["original_max_position_embeddings"] = draw.choice([64, 4096, 100_000])
        if kind == "llama3":
            scaling |= {"low_freq_factor": draw.choice([0.5, 1.0]), "high_freq_factor": draw.choice([2.0, 4.0])}
        if kind == "yarn":
            scaling |= {"beta_fast": draw.choice([16.0, 32.0]), "beta_slow": draw.choice([1.0, 3.0])}
            scaling |= draw.choice([{}, {"attention_factor": 1.3}])
        base, width = draw.choice([10000, 500, 1_000_000]), draw.choice([8, 64, 128, 256])
        config = transformers.LlamaConfig(
            hidden_size=4 * width,
            num_attention_heads=4,
            rope_parameters={**scaling, "rope_type": kind, "rope_theta": base},
        )
        expected, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        plain = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
        ours = RopeScaling(type=kind, **scaling)
        found = scaled_frequencies(plain, base, ours)
        differences["frequencies"] = max(differences["frequencies"], (found / expected - 1).abs().max().item())
        differences["factor"] = max(differences["factor"], abs(attention_factor(ours) - factor))
    return differences


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    DEVICE = select_device("cpu", threads=1)
    megatron_compat.apply(DEVICE)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    RANKS, GROUPS = start_process_groups(tiny_job("parity"), DEVICE, 60.0)
    seed_everything(1, RANKS)
    torch.manual_seed(1)
    found = {name: compare(*family, DEVICE) for name, family in families().items()}
    found["capped"] = capped(DEVICE)
    found["capacity"] = {"cache": with_capacity(DEVICE)}
    found["rope scaling"] = frequencies(cases=60)
    stop_process_groups()
    print(json.dumps(found))
