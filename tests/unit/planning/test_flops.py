"""Model FLOPs against the published formula, and device peaks."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.flops import formula, model_flops, peak_flops


@given(
    layers=st.integers(1, 100),
    heads=st.integers(1, 64),
    width=st.integers(1, 128),
    seq=st.integers(1, 8192),
    vocab=st.integers(1, 200_000),
    tokens=st.integers(1, 10**7),
)
def test_the_published_formula(
    make_job: Any, layers: int, heads: int, width: int, seq: int, vocab: int, tokens: int
) -> None:
    h = heads * width
    job = make_job(model={"num_layers": layers, "hidden_size": h, "num_attention_heads": heads, "seq_length": seq})
    expected = tokens * (72 * layers * h**2 + 12 * layers * h * seq + 6 * vocab * h)
    assert model_flops(job, tokens, vocab) == float(expected)


def test_an_encoder_has_a_head_more(make_job: Any) -> None:
    job, encoder = make_job(), make_job(model={"architecture": "bert"})
    h = job.model.hidden_size
    assert model_flops(encoder, 10, 512) - model_flops(job, 10, 512) == 10 * 6 * h * h
    assert formula(encoder) == formula(job).replace("6*V*h)", "6*V*h + 6*h*h)")


def test_a_window_takes_away_what_is_not_seen(make_job: Any) -> None:
    """Counted pair by pair, each twice: attention is counted as if it were not causal."""

    def of_scores(**window: int) -> float:
        model = {"num_layers": 3, "seq_length": 40}
        whole, none = (make_job(model={**model, **more}) for more in (window, {"sliding_window": 1}))
        one = 12 * 64 * 3 * 10 * (1 * (2 - 1 / 40))
        return (model_flops(whole, 10, 512) - model_flops(none, 10, 512) + one) / (12 * 64 * 10)

    pairs = sum(min(position + 1, 8) for position in range(40)) - 8 / 2  # of s² / 2, not of s (s + 1) / 2
    assert of_scores(sliding_window=8) == pytest.approx(3 * 2 * pairs / 40)
    assert of_scores(sliding_window=400) == of_scores()
    mixed = of_scores(sliding_window=8, window_attn_skip_freq=2)
    assert mixed == pytest.approx((of_scores() + 2 * of_scores(sliding_window=8)) / 3)


def test_an_encoders_window_is_on_both_sides(make_job: Any) -> None:
    """Exactly, pair by pair; a layer without a window has all of them."""
    model = {"architecture": "bert", "num_layers": 3, "seq_length": 40}
    windows = {"sliding_window": 8, "window_attn_skip_freq": 3}
    whole, windowed = (make_job(model={**model, **more}) for more in ({}, windows))
    seen = sum(abs(query - key) < 8 for query in range(40) for key in range(40))
    unseen = 2 * (40 * 40 - seen)
    less = model_flops(whole, 40, 512) - model_flops(windowed, 40, 512)
    assert less == pytest.approx(12 * whole.model.hidden_size * unseen, rel=1e-12)


def test_chunks_are_counted_pair_by_pair(make_job: Any) -> None:
    """Exactly; the last chunk is shorter, and every third layer has none."""
    model = {"num_layers": 6, "seq_length": 40, "no_rope_freq": 3}
    whole, chunked = (make_job(model={**model, **more}) for more in ({}, {"attention_chunk_size": 12}))
    apart = sum(query // 12 != key // 12 for query in range(40) for key in range(40))
    less = model_flops(whole, 40, 512) - model_flops(chunked, 40, 512)
    assert less == pytest.approx(12 * whole.model.hidden_size * 4 * apart, rel=1e-12)
    in_one = make_job(model={**model, "attention_chunk_size": 40})
    assert model_flops(in_one, 40, 512) == model_flops(whole, 40, 512)


def test_linear_attention_in_some_layers(make_job: Any) -> None:
    """Every second layer has 6 FLOPs for each weight, and 3 · 8 for each element of its states, in place of attention's
    scores.
    """
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 10}
    model = {"num_layers": 4, "add_bias_linear": False, "num_query_groups": 2, "attention_output_gate": True}
    delta = {**sizes, "linear_attention_freq": 2, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3}
    plain, linear = make_job(model=model), make_job(model={**model, **delta})
    h, s, d = plain.model.hidden_size, plain.model.seq_length, plain.model.head_dim
    q, k = plain.model.num_attention_heads * d, 2 * d
    attention = 6 * (h * (2 * q + 2 * k) + q * h) + 12 * q * s
    keys, values = 2 * 10, 6 * 12
    in_place = 6 * (h * (2 * keys + 2 * values + 2 * 6) + values * h) + 3 * (
        8 * values * 10 + 2 * 3 * (2 * keys + values)
    )
    assert model_flops(linear, 7, 512) - model_flops(plain, 7, 512) == 7 * 2 * (in_place - attention)
    assert formula(linear).startswith(formula(plain))


@pytest.mark.parametrize("flops", ["full", "causal"])
@pytest.mark.parametrize("rank", [None, 24])
def test_latent_attention_says_what_is_counted(rank: int | None, flops: str, make_job: Any) -> None:
    latent = {"kv_lora_rank": 40, "qk_head_dim": 12, "qk_pos_emb_head_dim": 6, "v_head_dim": 10, "q_lora_rank": rank}
    more = {"add_bias_linear": False, "position_embedding_type": "rope", "activation": "swiglu", "num_layers": 3}
    job = make_job(model={**latent, **more, "ffn_hidden_size": 100}, throughput={"flops": flops})
    whole, matrices, scores, queries = re.match(
        r"(.*?); .*latent attention h\*\(q\+2\*k\) \+ q\*h is (.*), and the q of q\*s is (.*?);.* is (.*)$",
        formula(job),
    ).groups()
    if rank is not None:
        matrices = matrices.replace("h*a*(n+e)", queries)
    said = whole.replace("q*s", f"{scores}*s").replace("h*(q+2*k) + q*h", matrices)
    model = job.model
    names = {"T": 7, "L": 3, "h": model.hidden_size, "a": model.num_attention_heads, "n": 12, "e": 6, "u": 10, "z": 40}
    names |= {"y": rank, "m": 3, "f": 100, "s": model.seq_length, "V": 512}
    assert model_flops(job, 7, 512) == pytest.approx(eval(said, names), rel=1e-12)


def test_grouped_queries_and_a_gate(make_job: Any) -> None:
    job = make_job(
        model={
            "num_layers": 1,
            "num_query_groups": 2,
            "kv_channels": 32,
            "ffn_hidden_size": 100,
            "activation": "swiglu",
        }
    )
    h, query, key, ffn, seq, vocab = 64, 4 * 32, 2 * 32, 100, 32, 512
    forward = 2 * (h * query + 2 * h * key + query * h + 3 * h * ffn + 2 * query * seq + vocab * h)
    assert model_flops(job, 10, vocab) == 10 * 3 * forward


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "fp16", 989e12),
        ("NVIDIA GH200 480GB", "bf16", 989e12),
        ("NVIDIA H20", "bf16", 148e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("Tesla T4", "fp16", 65e12),
        ("Tesla T4", "bf16", None),
        ("NVIDIA RTX A4000", "bf16", None),
        ("cpu", "fp32", None),
    ],
)
def test_peaks(name: str, dtype: str, peak: float | None) -> None:
    assert peak_flops(name, dtype) == peak
