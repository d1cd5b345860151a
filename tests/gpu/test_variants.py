"""Variants of GPT on a GPU in bf16: fused kernels and both layer backends against the CPU in fp32."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import largest_difference, tiny_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_query_groups": 2, "seq_length": 256, "vocab_size": 1000}
VARIANTS: dict[str, dict[str, Any]] = {
    "alibi": {"position_embedding_type": "alibi", "activation": "squared_relu"},
    "window": {"sliding_window": 64, "window_attn_skip_freq": 2, "activation": "gelu_tanh"},
    "llama3": {
        "rope_scaling": {"type": "llama3", "factor": 8, "original_max_position_embeddings": 64},
        **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False, "qk_layernorm": True},
    },
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 64}},
    "gemma": {
        **{"normalization": "RMSNorm", "activation": "geglu", "add_bias_linear": False, "apply_layernorm_1p": True},
        **{"scale_embeddings": True, "attention_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    },
}


@pytest.mark.parametrize("layers", ["torch", "transformer_engine"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_gpu_trains_what_the_cpu_trains(name: str, layers: str, ranks: Ranks, tmp_path: Path) -> None:
    if layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    sections: dict[str, Any] = {"model": {**SIZES, **VARIANTS[name]}, "schedule": {"train_iters": 10}}
    exact = ranks.losses_of(tiny_job("cpu", **sections, runtime={"device": "cpu"}), tmp_path)
    found = ranks.losses_of(
        tiny_job("gpu", **sections, precision={"dtype": "bf16"}, runtime={"device": "cuda", "layers": layers}), tmp_path
    )
    difference = largest_difference(exact, found)
    print(f"\nRESULT {name} {layers} bf16 on the GPU against fp32 on the CPU {difference:.2e}")
    assert difference < 5e-3
