"""An encoder attends both ways: all scores are computed where a decoder computes half."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.planning.hardware import shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time import StepTime, estimate_time


def time_of(make_job: Any, architecture: str, **model: Any) -> StepTime:
    sizes = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 8192}
    job = make_job(model={**sizes, "architecture": architecture, **model}, launch={"gpus_per_node": 1})
    device = shipped("H100")
    assert device is not None
    return estimate_time(job, 51200, "transformer_engine", device)


def test_attention_takes_nearly_twice_as_long(make_job: Any) -> None:
    encoder, decoder = time_of(make_job, "bert"), time_of(make_job, "gpt")
    ratio = encoder.parts["attention"] / decoder.parts["attention"]
    waiting = 1 + 1.1 / 32  # two sequences of 16 heads, and blocks of unequal length under a causal mask
    assert ratio == pytest.approx(1.88 / waiting, abs=0.01), "of 8,192 tokens; reading and writing takes both as long"
    assert 0 < encoder.parts["gemm"] / decoder.parts["gemm"] - 1 < 0.05, "the dense layer of its head"
    assert encoder.mfu != decoder.mfu


def test_the_head_keeps_activations(make_job: Any) -> None:
    jobs = [make_job(model={"architecture": architecture}) for architecture in ("gpt", "bert")]
    decoder, encoder = (dict(estimate_memory(job, 512, "torch").stages[0].parts) for job in jobs)
    assert encoder["activations"] > decoder["activations"]
    assert encoder["weights"] > decoder["weights"]


def test_a_window_takes_its_share_of_the_pairs_and_what_each_query_takes(make_job: Any) -> None:
    whole, windowed = time_of(make_job, "bert"), time_of(make_job, "bert", sliding_window=65)
    length = 8192
    seen = sum(min(place, 64) + 1 + min(length - 1 - place, 64) for place in range(length))
    share = windowed.parts["attention"] / whole.parts["attention"]
    assert seen / length**2 < share < (seen / length + 128 + 490) / (length + 490), "a block, and as much as 490 keys"


def test_torchs_layers_keep_a_mask_of_each_sequence(make_job: Any) -> None:
    """In the format of the scores: 16 bits."""
    models = ({"architecture": "bert", "seq_length": 64, **more} for more in ({}, {"sliding_window": 8}))
    jobs = [make_job(model=model, batch={"micro_batch_size": 3, "global_batch_size": None}) for model in models]
    for layers, mask in (("torch", 3 * 64 * 64 * 2), ("transformer_engine", 0)):
        whole, windowed = (dict(estimate_memory(job, 512, layers).stages[0].parts)["buffers"] for job in jobs)
        assert windowed - whole == mask


def test_chunks_take_their_share_of_the_pairs(make_job: Any) -> None:
    """Of layers that rotate, seven in eight; three chunks of which the last one is shorter."""
    chunked = {"attention_chunk_size": 3000, "no_rope_freq": 8}
    whole, some = time_of(make_job, "gpt", no_rope_freq=8), time_of(make_job, "gpt", **chunked)
    share = (2 * 3000**2 + 2192**2) / 8192**2
    assert some.parts["attention"] / whole.parts["attention"] == pytest.approx((1 + 7 * share) / 8)
