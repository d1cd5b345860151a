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
