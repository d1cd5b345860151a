"""What moves tokens to experts, and what else their layers take: closed forms, and counting by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.hardware import Device, device_named
from orchestrator.planning.time.kernels.accesses import TRANSFORMER_ENGINE, Kernels, TokenExchange, kernels_of
from orchestrator.planning.time.step import estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.sections.runtime import Layers

IN_BF16 = {"dtype": "bf16"}
LAYERS, MICRO_BATCHES, TOKENS, HIDDEN, INNER = 4, 2, 2048, 1024, 2048


def job_of(
    make_job: Any,
    *,
    gpus: int = 8,
    ep: int = 8,
    precision: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    **model: Any,
) -> Any:
    fields = {
        "num_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": 16,
        "seq_length": TOKENS,
        "activation": "swiglu",
        "add_bias_linear": False,
        "num_experts": 16,
        "moe_ffn_hidden_size": INNER,
    }
    return make_job(
        model=fields | model,
        parallelism={"expert_model_parallel_size": ep},
        batch={"micro_batch_size": 1, "global_batch_size": gpus * MICRO_BATCHES},
        launch={"nodes": -(-gpus // 8), "gpus_per_node": min(gpus, 8)},
        precision=precision or {},
        runtime=runtime or {},
    )


def parts(job: Any, kernels: Kernels = TRANSFORMER_ENGINE) -> dict[str, float]:
    """Seconds of a step where collectives take no time of their own."""
    found = estimate_with(job, vocabulary(job).padded_size, kernels, without_latency())
    return {**found.parts, "step": found.step_seconds}


def without_latency() -> Device:
    sheet = device_named("H100")
    return replace(sheet, efficiency=replace(sheet.efficiency, link_latency=0.0, network_latency=0.0))


def exchanging(**how: Any) -> Kernels:
    return replace(TRANSFORMER_ENGINE, token_exchange=TokenExchange(**how))


def streamed(bytes_: float) -> float:
    """Seconds of so many bytes in each layer and micro-batch."""
    sheet = without_latency()
    return LAYERS * MICRO_BATCHES * bytes_ / (sheet.memory_bandwidth * sheet.efficiency.memory)


@pytest.mark.parametrize(("gpus", "places"), [(8, 8), (16, 2)])
def test_a_token_goes_once_to_where_some_of_its_experts_are(make_job: Any, gpus: int, places: int) -> None:
    """Eight ranks of one machine, and sixteen of two, whose network takes longest: all choices are looked at."""
    chosen = 3
    job = job_of(make_job, gpus=gpus, ep=gpus, moe_router_topk=chosen)
    choices = list(itertools.product(range(places), repeat=chosen))
    copies = sum(place != 0 for choice in choices for place in choice)
    once = sum(place != 0 for choice in choices for place in set(choice))
    all_sent, sent = (parts(job, exchanging(sends_once=each))["expert_parallel"] for each in (False, True))
    assert sent / all_sent == pytest.approx(once / copies)


def test_of_groups_of_experts_a_token_reaches_only_some(make_job: Any) -> None:
    free = job_of(make_job, gpus=16, ep=16, moe_router_topk=4)
    model = free.model.model_copy(update={"moe_router_num_groups": 4, "moe_router_group_topk": 1})
    bound = free.model_copy(update={"model": model})
    kernels = exchanging(sends_once=True)
    assert parts(bound, kernels)["expert_parallel"] < parts(free, kernels)["expert_parallel"]
    assert parts(bound)["expert_parallel"] == parts(free)["expert_parallel"]


def test_an_exchange_beside_another_pass_costs_what_is_left_of_it(make_job: Any) -> None:
    job = job_of(make_job, gpus=16, ep=16)
    waited, hidden = (parts(job, exchanging(overlaps=each)) for each in (False, True))
    assert 0.0 < hidden["expert_parallel"] < waited["expert_parallel"]
    assert all(hidden[name] == waited[name] for name in ("gemm", "attention", "memory_bound"))


@pytest.mark.parametrize("layers", ["transformer_engine", "torch"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_tokens_are_sorted_as_the_run_sorts_them(make_job: Any, layers: Layers, deterministic: bool) -> None:
    """By Transformer Engine's kernels where a run has them, and otherwise by an operation at a time: what this adds to
    one expert more of a token, and to sixteen experts more.
    """
    fitted, is_fused = without_latency().fitted.experts, layers == "transformer_engine" and not deterministic

    def memory(**model: Any) -> float:
        runtime = {"deterministic": deterministic, "layers": layers}
        job = job_of(make_job, runtime=runtime, precision=IN_BF16, **model)
        found = kernels_of(job, layers)
        fused = replace(found, token_exchange=TokenExchange())
        return parts(job, found)["memory_bound"] - parts(job, fused)["memory_bound"]

    accesses = sum(fitted.unfused_moved) + sum(fitted.unfused_sorted) - sum(fitted.moved) - sum(fitted.sorted)
    more = 0.0 if is_fused else streamed(2 * accesses * TOKENS * HIDDEN)
    assert memory(moe_router_topk=2) - memory(moe_router_topk=1) == pytest.approx(more, rel=1e-6)
    less = 0.0 if is_fused else streamed((sum(fitted.routed) - sum(fitted.streamed_routing)) * TOKENS * 16)
    assert memory() - memory(num_experts=32) == pytest.approx(less, rel=1e-6)


def test_latent_attention_copies_queries_keys_and_values(make_job: Any) -> None:
    latent = {"kv_lora_rank": 128, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 48}
    job = job_of(make_job, precision=IN_BF16, **latent)
    fewer, more = (replace(TRANSFORMER_ENGINE, latent_copies=ForwardBackward(count, 2 * count)) for count in (1, 2))
    elements = TOKENS * 16 * (2 * (64 + 32) + 48)
    assert parts(job, more)["memory_bound"] - parts(job, fewer)["memory_bound"] == pytest.approx(
        streamed(2 * 3 * elements), rel=1e-6
    )


def test_no_counts_no_wait(make_job: Any) -> None:
    job, wait = job_of(make_job), device_named("H100").fitted.experts.joined_counting_seconds
    counted, padded = (parts(job, exchanging(waits_for_counts=each))["step"] for each in (1, 0))
    waits = LAYERS * MICRO_BATCHES * wait
    assert waits <= counted - padded < 1.1 * waits, "and the slowest of eight GPUs a little more"


def test_what_is_in_graphs_the_host_does_not_start(make_job: Any) -> None:
    job = job_of(make_job, moe_ffn_hidden_size=64)
    held = {each: parts(job, replace(TRANSFORMER_ENGINE, replayed=each)) for each in ("nothing", "attention", "layers")}
    assert held["nothing"]["host"] > held["attention"]["host"] > held["layers"]["host"] == 0.0
    assert held["attention"]["overhead"] > held["layers"]["overhead"], "counts are not waited for within a graph"


@pytest.mark.parametrize(("own", "of_element"), [(False, 6), (True, 0)], ids=["megatron-core", "own experts"])
def test_operands_of_experts_are_cast(make_job: Any, own: bool, of_element: int) -> None:
    """One expert more of a token: its input and what is between its matrices forward, the gradients of both outputs
    backward, at 6 bytes an element (tensorwise). Kernels of the runtime multiply these in 16 bits.
    """
    kernels = replace(TRANSFORMER_ENGINE, own_experts=own)

    def cast(chosen: int) -> float:
        narrow, wide = (
            parts(job_of(make_job, moe_router_topk=chosen, precision=each), kernels)["memory_bound"]
            for each in ({"fp8": {"recipe": "tensorwise"}}, {})
        )
        return narrow - wide

    operands = TOKENS * (HIDDEN + INNER + 2 * INNER + HIDDEN)
    assert cast(2) - cast(1) == pytest.approx(streamed(of_element * operands), abs=1e-12)


@pytest.mark.parametrize(
    ("own", "of_clamp", "of_bias"), [(False, 18, 34), (True, 0, 2)], ids=["megatron-core", "own experts"]
)
def test_a_clamp_and_biases_are_kernels_of_their_own(make_job: Any, own: bool, of_clamp: int, of_bias: int) -> None:
    """By megatron-core. In the runtime's kernels only gradients of biases and of how they are weighted."""
    kernels = replace(TRANSFORMER_ENGINE, own_experts=own)

    def memory(chosen: int, **model: Any) -> float:
        job = job_of(make_job, moe_router_topk=chosen, activation="quick_geglu", precision=IN_BF16, **model)
        return parts(job, kernels)["memory_bound"]

    def of_one(**model: Any) -> float:
        """What it adds to one expert more of a token."""
        return (memory(2, **model) - memory(2)) - (memory(1, **model) - memory(1))

    clamped = of_one(activation_func_clamp_value=7.0)
    assert clamped == pytest.approx(streamed(2 * of_clamp * TOKENS * INNER), abs=1e-12)
    in_products = 2 * 2 * INNER  # gradients of the first matrix's, as of any linear layer's
    assert of_one(add_bias_linear=True) == pytest.approx(streamed(2 * TOKENS * (of_bias * HIDDEN + in_products)))


@pytest.mark.parametrize(
    ("width", "one_by_one"), [(2**11, False), (2**13, True)], ids=["one kernel", "cuBLAS for each"]
)
def test_outputs_of_small_experts_take_longer_than_by_megatron(make_job: Any, width: int, one_by_one: bool) -> None:
    """Each of two experts has 1,024 tokens: where its width is 8,192, both products are 2^33 multiply-adds or more.
    Weight gradients are added to their buffers more slowly, whatever the width.
    """
    job = job_of(make_job, ep=1, gpus=1, moe_router_topk=1, num_experts=2, precision=IN_BF16, moe_ffn_hidden_size=width)
    own, others = (parts(job, replace(TRANSFORMER_ENGINE, own_experts=each))["gemm"] for each in (True, False))
    added = streamed(4 * 2 * 3 * HIDDEN * width)
    slower = own - others - added
    assert slower > 0 if not one_by_one else abs(slower) < 0.1 * own


@pytest.mark.parametrize("own", [False, True], ids=["megatron-core", "own experts"])
def test_megatrons_offset_on_its_way_is_waited_for(make_job: Any, own: bool) -> None:
    kernels = replace(TRANSFORMER_ENGINE, own_experts=own)
    plain, offset = (
        parts(job_of(make_job, activation=each), kernels)["overhead"] for each in ("swiglu", "quick_geglu")
    )
    waits = 0 if own else LAYERS * MICRO_BATCHES * device_named("H100").fitted.experts.counting_seconds
    assert waits <= offset - plain <= 1.1 * waits


def test_each_token_and_head_adds_to_the_gradient_of_a_sink(make_job: Any) -> None:
    plain, sinks = (parts(job_of(make_job, softmax_type=each))["attention"] for each in ("vanilla", "learnable"))
    each = device_named("H100").fitted.attention.sink_gradient_seconds
    assert sinks - plain == pytest.approx(LAYERS * MICRO_BATCHES * TOKENS * 16 * each)
