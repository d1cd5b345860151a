"""What holds for the time of every job, whatever its layout."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.benchmark_data import record
from support.depth import examples
from support.limits import set_limits
from support.pace import at_the_promised_pace
from support.reference_times import PADDED_VOCAB, job_of, published_rows
from support.timed_jobs import LARGE, LAYOUTS, device, job, seconds

from orchestrator.planning.flops import model_flops
from orchestrator.planning.hardware import Device, shipped_names
from orchestrator.planning.time import PARTS, StepTime, estimate_time, faster_with_graphs
from orchestrator.planning.time.kernels.accesses import OVERLAPPING, TORCH, TRANSFORMER_ENGINE, Kernels
from orchestrator.planning.time.passes import layer_pass, output_pass
from orchestrator.planning.time.setting import setting_of
from orchestrator.planning.time.step import estimate_with

FEW = settings(max_examples=examples(40))
"""Of what asks for up to nine estimates an example."""


@given(layout=LAYOUTS, layers=st.sampled_from(["torch", "transformer_engine"]), name=st.sampled_from(shipped_names()))
def test_parts_are_never_negative_and_add_up(make_job: Any, layout: dict[str, Any], layers: Any, name: str) -> None:
    made = job(make_job, **layout)
    found = estimate_time(made, 51200, layers, device(name))
    assert set(found.parts) == set(PARTS)
    assert all(part >= 0.0 and math.isfinite(part) for part in found.parts.values()), found.parts
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds)
    tokens = made.global_batch_size * 2048
    assert found.model_flops == model_flops(made, tokens, 51200)
    assert found.tokens_per_second_per_gpu == pytest.approx(tokens / found.step_seconds / made.world_size)
    _check_mfu(found, made, device(name))


def _check_mfu(found: StepTime, made: Any, on: Device) -> None:
    peak = None if on.is_cpu else on.peak_flops.get(made.precision.dtype)
    if peak is None:
        assert found.mfu is None
    else:
        assert found.mfu == pytest.approx(found.tflops_per_gpu * 1e12 / peak)
        assert 0.0 < found.mfu < 0.8  # causal attention does half of what is counted, and no more than that is won


@FEW
@given(layout=LAYOUTS)
def test_more_work_takes_longer(make_job: Any, layout: dict[str, Any]) -> None:
    large = estimate_time(job(make_job, **LARGE, **layout), 51200, "transformer_engine", device())
    assert large.parts["host"] == 0.0
    more = {"micro_batches": layout["micro_batches"] + 4, "layers": 32, "seq": 16384, "hidden": 16384}
    for key, value in more.items():
        assert seconds(job(make_job, **{**LARGE, **layout, key: value})) > large.step_seconds, key


@FEW
@given(layout=LAYOUTS, hidden=st.sampled_from([256, 2048]), seq=st.sampled_from([64, 2048]))
def test_more_work_is_never_faster_and_more_kernels_always_take_longer(
    make_job: Any, layout: dict[str, Any], hidden: int, seq: int
) -> None:
    """Of any size: where the host is the limit, longer sequences cost nothing until they are."""
    sizes = {**layout, "hidden": hidden, "seq": seq}
    base = seconds(job(make_job, **sizes))
    for key, value in {"micro_batches": layout["micro_batches"] + 4, "layers": 32}.items():
        assert seconds(job(make_job, **{**sizes, key: value})) > base, key
    for key, value in {"seq": 2 * seq, "hidden": 2 * hidden}.items():
        assert seconds(job(make_job, **{**sizes, key: value})) >= base * (1 - 1e-9), key


@FEW
@given(layout=LAYOUTS)
def test_full_recomputation_costs_about_a_third_of_the_passes(make_job: Any, layout: dict[str, Any]) -> None:
    """Of the GPU's and of the host's."""
    for sizes in ({}, LARGE, {"hidden": 256, "seq": 64}):
        plain, selective, full = (
            seconds(job(make_job, **{**layout, **sizes, "recompute": kind})) for kind in (None, "selective", "full")
        )
        assert plain < selective < full < 1.45 * plain


def test_sequence_parallelism_saves_what_lies_between(make_job: Any) -> None:
    without, with_it = (
        estimate_time(job(make_job, tp=8, sp=sp), 51200, "torch", device()).parts["memory_bound"]
        for sp in (False, True)
    )
    assert with_it < 0.7 * without


def test_ranks_that_share_a_key_head_gather_all_of_them(make_job: Any) -> None:
    """Fewer key/value heads than ranks cost the gathering of every rank's projections, both ways."""
    shared, own = (
        make_job(
            model={"hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": groups, "seq_length": 2048},
            parallelism={"tensor_model_parallel_size": 8, "sequence_parallel": True},
        )
        for groups in (4, 8)
    )
    more = [
        estimate_time(each, 51200, "torch", device()).parts["tensor_parallel"]
        / each.num_micro_batches
        / each.model.num_layers
        for each in (shared, own)
    ]
    widths = 32 * 128 + 2 * 4 * 128
    moved = 2 * shared.batch.micro_batch_size * 2048 * widths * 2 * 7 / 8
    on = device()
    expected = moved / (on.link_bandwidth * on.efficiency.link) + 2 * on.efficiency.link_latency
    assert more[0] - more[1] == pytest.approx(expected, rel=0.05)  # other products hide a little more or less


def test_virtual_stages_cut_the_bubble(make_job: Any) -> None:
    one, several = (
        estimate_time(job(make_job, pp=4, vp=vp, micro_batches=8, tied=False), 51200, "torch", device()).parts["bubble"]
        for vp in (None, 4)
    )
    assert several < 0.5 * one


def test_the_distributed_optimizer_shares_its_work(make_job: Any) -> None:
    alone, shared = (
        estimate_time(job(make_job, dp=16, sharded=sharded), 51200, "torch", device()).parts["optimizer"]
        for sharded in (False, True)
    )
    assert shared < 0.5 * alone


def test_gradients_that_are_not_overlapped_are_waited_for() -> None:
    overlapped = job_of("gpt-7.1b", tp=2, dp=8, micro=4, batch=32, nodes=2)
    waiting = overlapped.model_copy(
        update={
            "parallelism": overlapped.parallelism.model_copy(
                update={"overlap_grad_reduce": False, "overlap_param_gather": False}
            )
        }
    )
    hidden, waited = (
        estimate_time(each, PADDED_VOCAB, "transformer_engine", device()).parts["data_parallel"]
        for each in (overlapped, waiting)
    )
    assert waited > 2 * hidden


@pytest.mark.parametrize(
    ("chunks", "way"), [(8, "8 parts"), (16, "16 parts"), (32, "32 parts"), (64, "64 parts, in the buffer")]
)
def test_a_joined_loss_costs_the_logits_again_and_its_table_for_each_chunk(
    chunks: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much longer a step of 1.7B with 4 sequences took with Transformer Engine's layers on an H200."""
    measured = float(record("profiles", case=f"1.7B 4x1 TE, joined loss in {way}")["value"])
    plain = job_of("gpt-1.7b", micro=4, batch=4)
    joined = plain.model_copy(update={"runtime": plain.runtime.model_copy(update={"fused_linear_cross_entropy": True})})
    set_limits(monkeypatch, chunks_of_a_loss=chunks)
    one, other = (
        estimate_time(each, PADDED_VOCAB, "transformer_engine", device("H200")).step_seconds for each in (plain, joined)
    )
    assert (other - one) * 1e3 == pytest.approx(measured, rel=0.35)


@pytest.mark.parametrize(("layers", "saves"), [("transformer_engine", True), ("torch", False)])
def test_tensor_parallelism_is_overlapped_unless_it_is_switched_off(layers: Any, saves: bool) -> None:
    job = job_of("gpt-7.1b", tp=2, micro=4, batch=4)
    off = job.parallelism.model_copy(update={"tp_comm_overlap": False})
    overlapped, waiting = (
        estimate_time(each, PADDED_VOCAB, layers, device()).parts
        for each in (job, job.model_copy(update={"parallelism": off}))
    )
    assert {part for part in PARTS if overlapped[part] != waiting[part]} == (
        {"tensor_parallel", "overhead"} if saves else set()
    )
    if saves:
        assert overlapped["tensor_parallel"] < 0.7 * waiting["tensor_parallel"]


def test_each_layer_overlaps_and_the_output_layer_does_not() -> None:
    made = job_of("gpt-16b", tp=4, micro=4, batch=4)
    waiting, overlapping = (
        setting_of(made, PADDED_VOCAB, each, device()) for each in (TRANSFORMER_ENGINE, OVERLAPPING)
    )
    assert output_pass(overlapping) == output_pass(waiting)
    for slow, fast in zip(layer_pass(waiting), layer_pass(overlapping), strict=True):
        assert fast["tensor_parallel"] < 0.6 * slow["tensor_parallel"]
        assert fast == {**slow, "tensor_parallel": fast["tensor_parallel"]}


def test_what_is_gathered_and_what_is_summed_share_the_link() -> None:
    """Eight ranks of a layer multiply too little to hide both: the runtime's way is slower than megatron-core's own."""
    behind_weights = replace(OVERLAPPING, sums_with_input_gradient=False)
    for tp, is_faster in ((4, True), (8, False)):
        made = job_of("gpt-70b", tp=tp, micro=1, batch=1)
        in_pieces, behind = (
            estimate_with(made, PADDED_VOCAB, each, device("H200")).step_seconds
            for each in (OVERLAPPING, behind_weights)
        )
        assert (in_pieces < behind) == is_faster


def test_a_small_model_is_bound_by_the_host(make_job: Any) -> None:
    tiny = job(make_job, hidden=256, seq=64, layers=8)
    found = estimate_with(tiny, 51200, TORCH, device())
    assert found.parts["host"] > 0.5 * found.step_seconds
    larger = estimate_with(job(make_job, hidden=256, seq=64, layers=8, micro=4), 51200, TORCH, device())
    assert larger.step_seconds == pytest.approx(found.step_seconds, rel=1e-3)
    assert larger.parts["host"] < found.parts["host"]


def test_for_a_graph_the_host_does_nothing(make_job: Any) -> None:
    """What is left is half a millisecond between two steps, and the gaps between kernels, of which a graph has shorter
    ones: a ninth of the start of a kernel, where it was a sixth.
    """
    small: dict[str, Any] = {"hidden": 256, "seq": 64, "layers": 8}
    graphs = {"runtime": {"cuda_graphs": True}}
    plain, captured = (estimate_with(job(make_job, **small, **each), 51200, TORCH, device()) for each in ({}, graphs))
    assert captured.parts == {**plain.parts, "host": 0.0, "overhead": captured.parts["overhead"]}
    starts = 4 * small["layers"] * 54 * device().efficiency.launch
    assert captured.parts["overhead"] == pytest.approx(5e-4 + starts / 9)
    assert plain.parts["overhead"] == pytest.approx(5e-4 + starts / 6)


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({"hidden": 256, "seq": 64}, True),
        ({"micro": 8}, False),
        ({"hidden": 256, "seq": 64, "dp": 2}, True),
        ({"hidden": 4096, "seq": 4096, "micro_batches": 1, "dp": 2}, False),  # what is reduced beside the passes
    ],
    ids=["small", "large", "small replicas", "replicas"],
)
def test_what_graphs_make_faster(make_job: Any, more: dict[str, Any], waits: bool) -> None:
    assert faster_with_graphs(job(make_job, **more), 51200, "transformer_engine", device("H200")) == waits


def test_hosts_differ_so_that_one_replica_is_said_to_wait_before_it_does(make_job: Any) -> None:
    border = job(make_job, hidden=1024, micro=9)
    assert estimate_time(border, 51200, "torch", device("H200")).parts["host"] == 0.0
    assert faster_with_graphs(border, 51200, "torch", device("H200"))


def test_beside_a_graph_nothing_is_sent(make_job: Any) -> None:
    """Replicas wait for the whole reduction, as where nothing is to overlap."""
    large: dict[str, Any] = {"dp": 8, "hidden": 4096, "micro_batches": 1}
    overlapped, captured, waiting = (
        estimate_with(made, 51200, TORCH, device()).parts["data_parallel"]
        for made in (
            job(make_job, **large),
            job(make_job, **large, runtime={"cuda_graphs": True}),
            _without_overlap(job(make_job, **large)),
        )
    )
    assert overlapped < captured
    assert captured == pytest.approx(waiting)


def _without_overlap(made: Any) -> Any:
    parallelism = made.parallelism.model_copy(update={"overlap_grad_reduce": False})
    return made.model_copy(update={"parallelism": parallelism})


@pytest.mark.parametrize(
    ("more", "kernels"),
    [
        ({"bias": False}, 54),
        ({}, 54 + 40),
        ({"recompute": "selective"}, 54 + 40 + 1.8),
        ({"tp": 2}, 54 + 40 + 4 * 4),
        ({"tp": 2, "sp": True}, 54 + 40 + 10 * 4),
        ({"tp": 2, "sp": True, "recompute": "full"}, 54 + 40 + 10 * 4 + 18 + 14 + 4 * 4),
    ],
)
def test_a_host_that_starts_kernels_twice_as_fast_halves_its_time(
    make_job: Any, more: dict[str, Any], kernels: float
) -> None:
    """Of which the gaps after 54 kernels are the GPU's."""
    tiny, on = job(make_job, hidden=256, seq=64, **more), device()
    faster = replace(on, efficiency=replace(on.efficiency, launch=on.efficiency.launch / 2))
    slow, fast = (estimate_with(tiny, 51200, TORCH, each).parts["host"] for each in (on, faster))
    layers, micro_batches = 16, 4
    waited = layers * micro_batches * (4 * kernels - 54 / 6) * on.efficiency.launch
    assert slow - fast == pytest.approx(waited / 2)


def test_on_the_cpu_starting_is_all_that_is_waited_for(make_job: Any) -> None:
    """Its host computes: a layer's Python is a part of that."""
    tiny, on = job(make_job, hidden=256, seq=64, bias=False, dtype="fp32"), device("cpu")
    slow = replace(on, efficiency=replace(on.efficiency, launch=0.1))
    assert estimate_with(tiny, 51200, TORCH, slow).step_seconds == pytest.approx(16 * 4 * 130 * 0.1, rel=0.1)


@pytest.mark.parametrize(
    "more",
    [
        {"runtime": {"recompute_granularity": "selective"}},
        {"runtime": {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}},
        {"recompute": "full"},
        {"dropout": 0.1},
        {"tp": 2},
        {"tp": 2, "sp": True},
    ],
)
def test_what_starts_more_kernels_costs_a_small_model_time(make_job: Any, more: dict[str, Any]) -> None:
    tiny = {"hidden": 256, "seq": 64, "layers": 8, "bias": False}
    assert seconds(job(make_job, **{**tiny, **more})) > 1.01 * seconds(job(make_job, **tiny))


def test_kernels_of_experts_are_started_again_where_they_are_recomputed(make_job: Any) -> None:
    def taken(modules: list[str] | None, **model: Any) -> float:
        asked = {"recompute_granularity": "selective", "recompute_modules": modules} if modules else {}
        return seconds(make_job(model={"hidden_size": 256, "num_layers": 8, **model}, runtime=asked))

    experts = {"num_experts": 4, "moe_ffn_hidden_size": 256}
    assert taken(None) < taken(None, **experts) < taken(["moe"], **experts)
    assert taken(["moe"], **experts) - taken(None, **experts) > 3 * (taken(["mlp"]) - taken(None)) > 0


def test_the_largest_published_row_is_planned_in_milliseconds() -> None:
    largest = published_rows()[-1].job

    def planned() -> object:
        return estimate_time(largest, PADDED_VOCAB, "transformer_engine", device())

    assert at_the_promised_pace(planned, enough=0.02, attempts=5) < 0.02


def test_windows_save_time_where_the_kernel_knows_them_and_capping_costs(make_job: Any) -> None:
    def attention(kernels: Kernels, **model: Any) -> float:
        plain = job(make_job, seq=4096)
        changed = plain.model_copy(update={"model": plain.model.model_copy(update=model)})
        return estimate_with(changed, 51200, kernels, device()).parts["attention"]

    for kernels in (TORCH, TRANSFORMER_ENGINE):
        causal = attention(kernels)
        alibi = attention(kernels, position_embedding_type="alibi")
        assert alibi > 1.5 * causal
        assert attention(kernels, attention_logit_softcapping=50.0) > 3 * alibi
        assert attention(kernels, sliding_window=4096) == causal
    window = attention(TRANSFORMER_ENGINE, sliding_window=512)
    assert window / attention(TRANSFORMER_ENGINE) == pytest.approx(0.406, rel=0.05), "measured of heads of 128"
    assert window < attention(TRANSFORMER_ENGINE, sliding_window=512, window_attn_skip_freq=2)
    assert attention(TORCH, sliding_window=512) > attention(TORCH), "torch computes what it then masks"


@pytest.mark.parametrize(
    ("model", "joins"),
    [
        ({"position_embedding_type": "learned_absolute"}, False),
        ({"position_embedding_type": "none"}, False),
        ({"position_embedding_type": "alibi"}, True),
        ({"position_embedding_type": "learned_absolute", "qk_layernorm": True}, True),
        ({"position_embedding_type": "learned_absolute", "num_query_groups": 2}, True),
        ({"architecture": "t5", "decoder_seq_length": 512, "position_embedding_type": "learned_absolute"}, True),
        ({"architecture": "bert", "position_embedding_type": "learned_absolute"}, False),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_gradients_are_brought_together_where_attention_returns_them_apart(
    make_job: Any, model: dict[str, Any], joins: bool
) -> None:
    made = make_job(model=model)
    free = replace(TRANSFORMER_ENGINE, joins=0)
    with_them, without = (
        estimate_with(made, 51200, each, device()).parts["memory_bound"] for each in (TRANSFORMER_ENGINE, free)
    )
    assert (with_them > without) == joins


@pytest.mark.parametrize("fused", ["auto", False])
def test_gradients_in_16_bits_take_no_longer_than_in_32(make_job: Any, fused: Any) -> None:
    """They were planned to be read and written as an fp32 buffer is, which took 8 to 17 % of a step."""
    kept = {"runtime": {"gradient_accumulation_fusion": fused}, **LARGE}
    in_16, in_32 = (
        job(make_job, dp=8, micro_batches=32, precision={"grad_reduce_in_fp32": each}, **kept) for each in (False, True)
    )
    assert 0.95 * seconds(in_32) < seconds(in_16) <= seconds(in_32)


def test_attention_is_the_same_however_a_sequence_is_shared(make_job: Any) -> None:
    """Two of 32 heads on 8 GPUs: by heads, by parts of the sequence, or both. What processors wait for at its end is as
    much as 1.1 heads of 8,192 tokens, of a part of them a part, and next to nothing of long ones.
    """

    def attention(length: int, tp: int) -> float:
        made = make_job(
            model={"num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": length},
            parallelism={"tensor_model_parallel_size": tp, "context_parallel_size": 8 // tp},
            launch={"gpus_per_node": 8},
        )
        return estimate_time(made, 51200, "transformer_engine", device()).parts["attention"]

    for tp in (1, 4, 8):
        assert attention(131072, tp) == pytest.approx(attention(131072, 1), rel=0.02)
    assert attention(8192, 8) / attention(8192, 1) == pytest.approx((8 + 1.1) / (8 + 1.1 / 8), rel=0.01)


def test_weights_that_are_gathered_cost_what_is_not_hidden(make_job: Any) -> None:
    """For each micro-batch: as long as they are small beside it, a layer of each pass; else what the links take."""
    sizes = {"dp": 8, "hidden": 4096, "layers": 32}

    def waited(micro_batches: int, seq: int, **degrees: Any) -> float:
        made = job(make_job, **sizes, micro_batches=micro_batches, seq=seq)
        made = made.changed(parallelism=degrees)
        return estimate_time(made, 51200, "transformer_engine", device()).parts["data_parallel"]

    whole, sharded = waited(4, 4096), waited(4, 4096, fsdp="full")
    assert sharded > whole
    assert waited(8, 4096, fsdp="full") == pytest.approx(2 * sharded, rel=0.2)
    assert waited(8, 4096) == pytest.approx(whole, rel=0.05)
    exposed = waited(4, 4096, fsdp="full", overlap_grad_reduce=False, overlap_param_gather=False)
    assert exposed > 2 * sharded
    assert waited(4, 256, fsdp="full") > sharded


def test_a_group_of_replicas_shares_out_its_experts_as_one_machine_alone(make_job: Any) -> None:
    """In each micro-batch and in Muon's update; what it waits for the other groups, it does once a step."""

    def seconds(nodes: int, micro_batches: int) -> dict[str, float]:
        made = make_job(
            model={
                **{"num_layers": 4, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 4096},
                **{"num_experts": 64, "moe_ffn_hidden_size": 1024, "add_bias_linear": False},
            },
            parallelism={"fsdp": 8},
            optimizer={"name": "muon"},
            batch={"micro_batch_size": 1, "global_batch_size": 8 * nodes * micro_batches},
            launch={"nodes": nodes, "gpus_per_node": 8},
        )
        return estimate_time(made, 51200, "transformer_engine", device()).parts

    groups, alone = ([seconds(nodes, micro_batches) for micro_batches in (1, 5)] for nodes in (4, 1))
    assert groups[0]["optimizer"] == pytest.approx(alone[0]["optimizer"])
    of_groups, of_one = (few["data_parallel"] - one["data_parallel"] for one, few in (groups, alone))
    assert of_groups == pytest.approx(of_one)
