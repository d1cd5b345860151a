"""What links and networks make of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.timed_jobs import LARGE, LAYOUTS, device, job, seconds

from orchestrator.planning.time import estimate_time


@given(layout=LAYOUTS, better=st.sampled_from(["memory_bandwidth", "link_bandwidth", "network_bandwidth"]))
def test_a_better_machine_is_never_slower(make_job: Any, layout: dict[str, Any], better: str) -> None:
    made = job(make_job, **layout)
    improved = replace(device(), **{better: 1.3 * getattr(device(), better)})
    assert seconds(made, improved) <= seconds(made) * (1 + 1e-9)


def test_tensor_parallelism_over_the_network_is_far_slower(make_job: Any) -> None:
    inside = job(make_job, tp=8, sp=True, **LARGE)
    across = job(make_job, tp=8, sp=True, **LARGE, nodes=4)
    assert seconds(across) > 1.5 * seconds(inside)


def test_links_that_join_machines_are_no_network(make_job: Any) -> None:
    """A GB200's machine has 4 GPUs, and NVLink joins 16 of them for a job."""
    linked = device("GB200")
    alone, all_linked = (replace(linked, linked_machines=machines) for machines in (1, 32))
    of_two = job(make_job, tp=8, sp=True, **LARGE, nodes=2)
    assert seconds(of_two, alone) > 1.5 * seconds(of_two, linked)
    of_many = job(make_job, tp=8, dp=16, sp=True, micro_batches=1, **LARGE, nodes=32)
    assert seconds(of_many, alone) > seconds(of_many, linked) > seconds(of_many, all_linked)


def test_machines_of_unusual_size_are_taken_as_the_job_says(make_job: Any) -> None:
    """Sixteen GPUs that no `launch.nodes` spreads are two machines of eight: no machine has more."""
    unsaid, said = job(make_job, tp=8, dp=2), job(make_job, tp=8, dp=2, nodes=2)
    assert seconds(unsaid) == seconds(said)


def test_tokens_reach_experts_on_machines_that_links_join(make_job: Any) -> None:
    linked = device("GB200")
    model = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 4096, "add_bias_linear": False}
    sizes = {"num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096}
    made = make_job(
        model={**sizes, **model},
        parallelism={"expert_model_parallel_size": 8},
        batch={"micro_batch_size": 1, "global_batch_size": 8},
        launch={"nodes": 2, "gpus_per_node": 4},
    )
    sent, over_network = (
        estimate_time(made, 51200, "transformer_engine", on).parts["expert_parallel"]
        for on in (linked, replace(linked, linked_machines=1))
    )
    assert 0 < sent < over_network / 3
