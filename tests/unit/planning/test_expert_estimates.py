"""Memory and time of models with experts: what more or fewer of them, and spreading them, must do to an estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.flops import model_flops
from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time.kernels.accesses import TRANSFORMER_ENGINE, Kernels
from orchestrator.planning.time.step import estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec

MODEL: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "seq_length": 2048,
    "activation": "swiglu",
    "add_bias_linear": False,
    "num_experts": 8,
    "moe_ffn_hidden_size": 2048,
}
EP, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"


def job_of(make_job: Any, model: dict[str, Any] | None = None, **parallelism: Any) -> JobSpec:
    made: JobSpec = make_job(
        model={**MODEL, **(model or {})},
        parallelism={"data_parallel_size": 8, **parallelism},
        batch={"micro_batch_size": 1, "global_batch_size": 16},
        launch={"nodes": 1},
    )
    return made


def memory(job: JobSpec) -> dict[str, int]:
    found = estimate_memory(job, vocabulary(job).padded_size, "transformer_engine")
    [stage] = found.stages
    assert sum(stage.parts.values()) == stage.peak_bytes
    return {**stage.parts, "peak": stage.peak_bytes}


def time(job: JobSpec, kernels: Kernels = TRANSFORMER_ENGINE) -> dict[str, float]:
    found = estimate_with(job, vocabulary(job).padded_size, kernels, device_named("H100"))
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)
    assert all(seconds >= 0 for seconds in found.parts.values())
    return {**found.parts, "step": found.step_seconds}


def test_torch_s_layers_compute_one_expert_after_the_other_however_fast_attention_is(make_job: Any) -> None:
    job = job_of(make_job)
    one_by_one = job_of(make_job, {"moe_grouped_gemm": False})
    torchs, grouped = replace(TRANSFORMER_ENGINE, layers="torch"), replace(TRANSFORMER_ENGINE, own_experts=False)
    assert time(job, torchs)["gemm"] == time(one_by_one)["gemm"] > time(job, grouped)["gemm"]
    assert time(job, replace(TRANSFORMER_ENGINE, fused_attention=False))["gemm"] == time(job)["gemm"]


def test_spread_experts_are_fewer_on_each_rank(make_job: Any) -> None:
    whole, spread = (memory(job_of(make_job, **{EP: size})) for size in (1, 8))
    experts = 8 * 8 * 3 * 1024 * 2048
    assert whole["weights"] - spread["weights"] == 2 * experts * 7 / 8
    assert whole["activations"] == spread["activations"], "tokens are spread evenly"


def test_the_optimizer_of_experts_is_shared_by_those_that_hold_the_same(make_job: Any) -> None:
    """All weights are updated once, whoever holds them: the same state at every EP."""
    states = {memory(job_of(make_job, **{EP: size}))["optimizer"] for size in (1, 2, 4, 8)}
    assert max(states) - min(states) <= 16


@given(st.sampled_from(["num_experts", "moe_router_topk", "moe_ffn_hidden_size"]), st.integers(1, 3))
def test_more_never_takes_less(make_job: Any, field: str, factor: int) -> None:
    fewer, more = job_of(make_job), job_of(make_job, {field: {**MODEL, "moe_router_topk": 2}[field] * 2**factor})
    assert memory(more)["peak"] >= memory(fewer)["peak"]
    assert time(more)["step"] >= 0.999 * time(fewer)["step"]


def test_tokens_travel_where_experts_are_spread(make_job: Any) -> None:
    assert time(job_of(make_job))["expert_parallel"] == 0.0
    near, far = (time(job_of(make_job, **{EP: size}))["expert_parallel"] for size in (2, 8))
    assert 0.0 < near < far


def test_bringing_all_tokens_to_all_ranks_takes_longer_and_a_buffer(make_job: Any) -> None:
    sent, gathered = (
        job_of(make_job, {"moe_token_dispatcher_type": kind}, **{EP: 8}) for kind in ("alltoall", "allgather")
    )
    assert time(gathered)["expert_parallel"] > time(sent)["expert_parallel"]
    assert memory(gathered)["buffers"] - memory(sent)["buffers"] == 8 * 2048 * 1024 * 2


def test_whole_experts_send_less_than_split_ones(make_job: Any) -> None:
    tensor = {"tensor_model_parallel_size": 4, "sequence_parallel": True, "data_parallel_size": 2, EP: 2}
    split, whole = (time(job_of(make_job, **tensor, **{ETP: size})) for size in (4, 1))
    assert whole["expert_parallel"] < split["expert_parallel"]


def test_recomputed_experts_keep_less_and_take_longer(make_job: Any) -> None:
    """Half of the layers are dense: `mlp` is of those, `moe` of the others, and both together of all."""
    kept, takes = {}, {}
    for names in ((), ("moe",), ("mlp",), ("mlp", "moe"), ("layernorm",)):
        asked = {"recompute_granularity": "selective", "recompute_modules": list(names)} if names else {}
        found = job_of(make_job, {"moe_layer_freq": 2, "ffn_hidden_size": 4096}, **{EP: 8})
        again = found.model_copy(update={"runtime": found.runtime.model_copy(update=asked)})
        kept[names], takes[names] = memory(again)["activations"], time(again)
    less = {names: kept[()] - kept[names] for names in kept}
    assert less["mlp", "moe"] == less["mlp",] + less["moe",]
    assert all(less[names] > 0 for names in kept if names)
    again = {names: takes[names].get("recompute", 0.0) for names in takes}
    assert again["mlp", "moe"] == pytest.approx(again["mlp",] + again["moe",])
    assert again["moe",] > again["layernorm",] > again[()] == 0.0


def test_tokens_that_are_dropped_are_not_computed(make_job: Any) -> None:
    """With tokens spread evenly, a capacity of half the even share is a half of all; one above it drops nothing."""
    jobs = {None: job_of(make_job, **{EP: 8})}
    jobs |= {factor: job_of(make_job, {"moe_expert_capacity_factor": factor}, **{EP: 8}) for factor in (0.5, 1.0, 2.0)}
    one = job_of(make_job, {"moe_router_topk": 1}, **{EP: 8})  # two halves of a choice are one
    for factor in (1.0, 2.0):
        assert memory(jobs[factor]) == memory(jobs[None])
        assert time(jobs[factor]) == time(jobs[None])
        assert model_flops(jobs[factor], 1, 384) == model_flops(jobs[None], 1, 384)
    assert memory(jobs[0.5]) == memory(one)
    assert time(jobs[0.5]) == pytest.approx(time(one))
    assert model_flops(jobs[0.5], 1, 384) == model_flops(one, 1, 384) < model_flops(jobs[None], 1, 384)
    assert time(jobs[0.5])["expert_parallel"] < time(jobs[None])["expert_parallel"]


def test_a_layer_without_experts_is_a_dense_one(make_job: Any) -> None:
    """Half of the layers with experts lies between none and all."""
    dense = {key: value for key, value in MODEL.items() if "experts" not in key and "moe" not in key}
    none = make_job(
        model={**dense, "ffn_hidden_size": 2048},
        parallelism={"data_parallel_size": 8},
        batch={"micro_batch_size": 1, "global_batch_size": 16},
    )
    half, every = (job_of(make_job, {"ffn_hidden_size": 2048, "moe_layer_freq": step}) for step in (2, 1))
    for estimate in (memory, time):
        name = "peak" if estimate is memory else "step"
        values = [estimate(job)[name] for job in (none, half, every)]
        assert values == sorted(values)
        assert values[1] == pytest.approx((values[0] + values[2]) / 2, rel=0.1)
