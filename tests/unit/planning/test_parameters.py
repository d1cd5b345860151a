"""Parameter counts against models that megatron-core builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks

from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import padded_vocab_size

GPT2_LARGE = {
    "num_layers": 36,
    "hidden_size": 1280,
    "num_attention_heads": 20,
    "seq_length": 1024,
    "vocab_size": 50257,
    "position_embedding_type": "learned_absolute",
}
GQA = {
    "num_layers": 8,
    "hidden_size": 96,
    "num_attention_heads": 12,
    "num_query_groups": 4,
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
LATENT = {
    **{"num_attention_heads": 4, "kv_lora_rank": 24, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 12},
    **{"add_bias_linear": False, "normalization": "RMSNorm", "qk_layernorm": True, "activation": "swiglu"},
}
BERT = {"architecture": "bert", "position_embedding_type": "learned_absolute"}
CASES: dict[str, tuple[dict[str, Any], int, int, int | None]] = {
    "seed": (GPT2_LARGE, 2, 2, None),
    "plain": ({}, 1, 1, None),
    "tp": ({}, 2, 1, None),
    "pp": ({}, 1, 4, None),
    "interleaved": ({"num_layers": 8}, 2, 2, 2),
    "gqa": (GQA, 2, 2, None),
    "gqa tied, interleaved": ({**GQA, "untie_embeddings_and_output_weights": False}, 4, 2, 4),
    "untied, one stage": ({"untie_embeddings_and_output_weights": True}, 2, 1, None),
    "multi-query under tp": ({"num_query_groups": 1}, 2, 1, None),
    "qkv bias alone": ({"add_bias_linear": False, "add_qkv_bias": True}, 2, 2, None),
    "qk norms, wide heads": ({"qk_layernorm": True, "kv_channels": 48, "ffn_hidden_size": 200}, 2, 2, None),
    "qk rms norms": ({**GQA, "qk_layernorm": True}, 1, 2, None),
    "gated with biases": ({"activation": "swiglu"}, 4, 1, None),
    "long positions": ({"position_embedding_type": "learned_absolute", "max_position_embeddings": 128}, 2, 4, None),
    "no positions": ({"position_embedding_type": "none"}, 1, 2, None),
    "latents": (LATENT, 2, 2, None),
    "latents of queries too": ({**LATENT, "q_lora_rank": 20}, 2, 1, None),
    "latents without norms": ({**LATENT, "q_lora_rank": 20, "qk_layernorm": False}, 4, 1, None),
    "latents, biases": ({**LATENT, "add_bias_linear": True, "normalization": "LayerNorm"}, 1, 2, None),
    "bert": (BERT, 1, 1, None),
    "bert under tp and pp": (BERT, 2, 2, None),
    "bert, interleaved, without a binary head": ({**BERT, "bert_binary_head": False}, 2, 2, 2),
    "bert, untied": ({**BERT, "untie_embeddings_and_output_weights": True}, 4, 1, None),
}


def _job(make_job: Any, name: str) -> tuple[Any, int]:
    model, tp, pp, vp = CASES[name]
    job = make_job(
        model=model,
        parallelism={
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": vp,
        },
    )
    return job, padded_vocab_size(job.model.vocab_size, job.model.make_vocab_size_divisible_by, tp)


@pytest.fixture(scope="module")
def megatron_counts(make_job: Any, ranks: Ranks) -> dict[str, list[list[int]]]:
    """The (tp, pp, count) triples of every case, from one process that builds them all."""
    cases = []
    for name, (_, tp, pp, vp) in CASES.items():
        job, padded = _job(make_job, name)
        cases.append(
            {
                "model": job.model.model_dump(),
                "ffn_size": job.model.ffn_size,
                "positions": job.model.positions,
                "padded_vocab": padded,
                "tp": tp,
                "pp": pp,
                "vp": vp,
            }
        )
    said = ranks.program(Path(__file__).parent, "megatron_counts_program", typed=json.dumps(cases))
    return dict(zip(CASES, json.loads(said), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_counts_are_megatrons(make_job: Any, megatron_counts: dict[str, list[list[int]]], name: str) -> None:
    job, padded = _job(make_job, name)
    ours = [[rank.tp, rank.pp, rank.parameters] for rank in parameters(job, padded).per_rank]
    assert sorted(ours) == sorted(megatron_counts[name])


def test_the_seeds_log(make_job: Any) -> None:
    job, padded = _job(make_job, "seed")
    assert padded == 50432
    counts = {(rank.tp, rank.pp): rank.parameters for rank in parameters(job, padded).per_rank}
    assert counts == {(0, 0): 210753280, (1, 0): 210753280, (0, 1): 209445120, (1, 1): 209445120}


@pytest.mark.parametrize("name", CASES)
def test_the_total_is_that_of_one_rank_alone(make_job: Any, name: str) -> None:
    job, padded = _job(make_job, name)
    alone = make_job(model=CASES[name][0])
    [only] = parameters(alone, padded).per_rank
    counted = parameters(job, padded)
    assert counted.total == only.parameters
    assert counted.largest_rank == max(rank.parameters for rank in counted.per_rank)
