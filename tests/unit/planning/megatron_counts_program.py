"""Build GPT and BERT models with megatron-core, without memory, and count their parameters.

Reads JSON cases on standard input ({"model", "ffn_size", "positions", "padded_vocab", "tp", "pp", "vp"}; `model` is a
full ModelSpec) and prints, for each, the parameters of every (tensor, pipeline) rank as [[tp, pp, count], …]. A program
of its own, because it tells torch that CUDA tensors live on the "meta" device.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that apex is not installed
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel


class Norm(torch.nn.Module):
    """Has the parameters of a LayerNorm or RMSNorm; is never run."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.empty(hidden_size))


class Whole(torch.nn.Module):
    """Has the weight of a linear layer of Transformer Engine that every tensor-parallel rank has whole."""

    def __init__(self, inputs: int, outputs: int, *, parallel_mode: str, **unused: Any) -> None:
        super().__init__()
        assert parallel_mode == "duplicated"
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs))


class NoCore(torch.nn.Module):
    """In place of a core of attention, which has no parameters: that of megatron-core itself takes no two widths."""

    def __init__(self, **unused: Any) -> None:
        super().__init__()


LATENT = ("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def config_of(case: dict[str, Any]) -> TransformerConfig:
    model = case["model"]
    gated = model["activation"] == "swiglu"
    has_latents = model["kv_lora_rank"] is not None
    kind = MLATransformerConfig if has_latents else TransformerConfig
    return kind(
        **({name: model[name] for name in LATENT} if has_latents else {}),
        num_layers=model["num_layers"],
        hidden_size=model["hidden_size"],
        num_attention_heads=model["num_attention_heads"],
        num_query_groups=model["num_query_groups"],
        kv_channels=model["kv_channels"],
        ffn_hidden_size=case["ffn_size"],
        normalization=model["normalization"],
        gated_linear_unit=gated,
        activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu,
        add_bias_linear=model["add_bias_linear"],
        add_qkv_bias=model["add_qkv_bias"],
        qk_layernorm=model["qk_layernorm"],
        tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"],
        virtual_pipeline_model_parallel_size=case["vp"],
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )


def build(case: dict[str, Any], config: TransformerConfig, chunk: int | None) -> GPTModel | BertModel:
    model = case["model"]
    ends = {
        "vocab_size": case["padded_vocab"],
        "max_sequence_length": case["positions"],
        "pre_process": parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
        "post_process": parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
        "position_embedding_type": model["position_embedding_type"],
        "share_embeddings_and_output_weights": not model["untie_embeddings_and_output_weights"],
        "vp_stage": chunk,
    }
    if model["architecture"] == "bert":
        has_head = model["bert_binary_head"]
        return BertModel(config, 2 * has_head, bert_layer_local_spec, add_binary_head=has_head, **ends)
    has_latents = model["kv_lora_rank"] is not None
    spec = get_gpt_layer_local_spec(qk_layernorm=model["qk_layernorm"], multi_latent_attention=has_latents)
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    if has_latents:
        attention = spec.submodules.self_attention.submodules
        attention.core_attention = NoCore
        attention.linear_q_down_proj = attention.linear_kv_down_proj = Whole
        if model["qk_layernorm"]:
            attention.q_layernorm = attention.kv_layernorm = Norm
    elif model["qk_layernorm"]:
        attention = spec.submodules.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = Norm
    layers = get_num_layers_to_build(config, vp_stage=chunk)
    return GPTModel(
        config,
        TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=Norm),
        **ends,
    )


def count(case: dict[str, Any]) -> list[list[int]]:
    config = config_of(case)
    counts = []
    for rank in range(case["tp"] * case["pp"]):
        dist.init_process_group("fake", rank=rank, world_size=case["tp"] * case["pp"], store=FakeStore())
        parallel_state.initialize_model_parallel(case["tp"], case["pp"], case["vp"], create_gloo_process_groups=False)
        with torch.device("meta"):
            chunks = (
                [build(case, config, chunk) for chunk in range(case["vp"] or 1)]
                if case["vp"]
                else [build(case, config, None)]
            )
        parameters = sum(p.numel() for chunk in chunks for p in chunk.parameters())
        counts.append(
            [
                parallel_state.get_tensor_model_parallel_rank(),
                parallel_state.get_pipeline_model_parallel_rank(),
                parameters,
            ]
        )
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    return counts


if __name__ == "__main__":
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment,return-value]
    vars(multi_latent_attention)["TELinear"] = Whole  # which it names without Transformer Engine too
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    print(json.dumps([count(case) for case in json.load(sys.stdin)]))
