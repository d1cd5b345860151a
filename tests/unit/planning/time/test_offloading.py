"""Activations and optimizer state in the host's memory: what of their way there and back is not covered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.timed_jobs import device

from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time import estimate_time

MODEL = {"num_layers": 16, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 8192}


def offloading(make_job: Any, count: int | None, tp: int = 1, **model: Any) -> Any:
    runtime = {"layers": "transformer_engine", "cpu_offloading_num_layers": count, "cuda_graphs": False}
    layout = {"parallelism": {"tensor_model_parallel_size": tp}, "launch": {"gpus_per_node": tp}}
    return make_job(model={**MODEL, **model}, runtime=runtime, precision={"dtype": "bf16"}, **layout)


def copies(make_job: Any, count: int | None, gpu: Any = None, tp: int = 1, **model: Any) -> float:
    job = offloading(make_job, count, tp, **model)
    return estimate_time(job, 51200, "transformer_engine", gpu or device()).parts["host_copies"]


def test_through_one_queue_what_comes_back_covers_itself_alone(make_job: Any) -> None:
    """With ranks that share layers the GPU takes all work in order: most of the backward pass hides nothing."""
    assert copies(make_job, 2, tp=1) == 0
    assert copies(make_job, 2, tp=2) > 0


def test_all_layers_but_two_cover_the_copies(make_job: Any) -> None:
    slow, shorter = replace(device(), host_bandwidth=8e9), offloading(make_job, None, num_layers=15)
    plain, kept = (
        estimate_memory(offloading(make_job, count), 51200, "transformer_engine").stages[0].parts["activations"]
        for count in (None, 14)
    )
    both_ways = 2 * shorter.num_micro_batches * 14 * (plain - kept) / 13 / (0.85 * 8e9)  # one is on its way
    with_all, with_fewer = (
        estimate_time(each, 51200, "transformer_engine", slow).parts for each in (offloading(make_job, None), shorter)
    )
    of_layer = sum(with_all[name] - with_fewer[name] for name in ("gemm", "attention", "memory_bound"))
    assert both_ways - copies(make_job, 14, slow) == pytest.approx(14 * of_layer, rel=0.03)


def test_copies_of_all_layers_but_one_are_waited_for(make_job: Any) -> None:
    """Each has to be done before the next layer begins: fast copies too."""
    fast = replace(device(), host_bandwidth=1e12)
    assert copies(make_job, 14, fast) == 0
    most = offloading(make_job, 15)
    plain, kept = (
        estimate_memory(offloading(make_job, count), 51200, "transformer_engine").stages[0].parts["activations"]
        for count in (None, 15)
    )
    each_way = 15 * (plain - kept) / 14 / (0.85 * 1e12)  # one is on its way
    assert copies(make_job, 15, fast) == pytest.approx(2 * most.num_micro_batches * each_way, rel=0.02)


def test_few_layers_travel_while_the_others_compute(make_job: Any) -> None:
    assert copies(make_job, None) == 0
    assert copies(make_job, 2) == 0


@pytest.mark.parametrize("model", [{}, {"num_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}])
def test_what_more_of_them_take_is_waited_for(make_job: Any, model: dict[str, Any]) -> None:
    """Each way, of each micro-batch: bytes over the link, less what is computed meanwhile."""
    slow = replace(device(), host_bandwidth=8e9)
    fewer, more = (copies(make_job, count, slow, **model) for count in (13, 14))
    plain, kept = (
        estimate_memory(offloading(make_job, count, **model), 51200, "transformer_engine").stages[0].parts
        for count in (None, 15)
    )
    of_layer = (plain["activations"] - kept["activations"]) / 14  # one is on its way
    micro_batches = offloading(make_job, 15, **model).num_micro_batches
    assert more - fewer == pytest.approx(2 * micro_batches * of_layer / (0.85 * 8e9), rel=0.02)
    assert copies(make_job, 15, device(), **model) < more


def parts_with(make_job: Any, optimizer: dict[str, Any], gpu: Any = None, dp: int = 1, **sections: Any) -> Any:
    layout = {"parallelism": {"data_parallel_size": dp}, "launch": {"gpus_per_node": dp}}
    job = make_job(model=MODEL, precision={"dtype": "bf16"}, optimizer=optimizer, **layout, **sections)
    return job, estimate_time(job, 51200, "torch", gpu or device()).parts


@pytest.mark.parametrize(("fraction", "dp"), [(1.0, 1), (0.5, 1), (1.0, 4)])
def test_an_update_waits_for_the_state_on_the_host(make_job: Any, fraction: float, dp: int) -> None:
    """12 bytes of each parameter of the rank's share come over the link while others go, and kernels run meanwhile."""
    job, parts = parts_with(make_job, {"offload_fraction": fraction}, dp=dp)
    _, plain = parts_with(make_job, {}, dp=dp)
    on_host = estimate_memory(job, 51200, "torch").host_bytes
    one_way = on_host / (device().host_bandwidth * 0.85)
    assert {key for key, value in parts.items() if plain[key] != value} - {"overhead"} == {"host_copies"}
    assert parts["host_copies"] == pytest.approx(one_way - plain["optimizer"], rel=0.01)


def test_a_fast_link_hides_what_comes_and_goes(make_job: Any) -> None:
    _, parts = parts_with(make_job, {"offload_fraction": 1.0}, replace(device(), host_bandwidth=1e13))
    assert parts["host_copies"] == 0


def test_moments_in_16_bits_come_faster(make_job: Any) -> None:
    """8 bytes in place of 12; on a link so slow that kernels do not count."""
    slow, narrow = replace(device(), host_bandwidth=1e9), {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    _, wide = parts_with(make_job, {"offload_fraction": 1.0}, slow)
    _, less = parts_with(make_job, {"offload_fraction": 1.0, "adam_beta2": 0.95, **narrow}, slow)
    assert less["host_copies"] / wide["host_copies"] == pytest.approx(8 / 12, rel=0.01)
