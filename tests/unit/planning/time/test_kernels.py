"""Matrix products, attention, groups of ranks and the pipeline, each by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.benchmark_data import record

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.layout.pipeline import timeline
from orchestrator.planning.time.communication import group_of
from orchestrator.planning.time.kernels.accesses import TORCH, TRANSFORMER_ENGINE
from orchestrator.planning.time.kernels.attention import attention_seconds, width_of_kernel
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.time.pipeline_schedule import closed_form, pipeline_seconds

SIDES = st.integers(1, 20_000)


def device(name: str = "H200") -> Device:
    found = shipped(name)
    assert found is not None
    return found


@given(m=SIDES, n=SIDES, k=SIDES)
def test_a_product_is_never_faster_than_arithmetic_or_memory_allow(m: int, n: int, k: int) -> None:
    taken = gemm_seconds(m, n, k, device(), "bf16")
    assert taken >= 2 * m * n * k / 989e12
    assert taken >= 2 * (m * k + k * n + m * n) / 4.8e12


def test_a_large_product_runs_at_its_efficiency_and_a_thin_one_does_not() -> None:
    def reached(m: int, n: int, k: int) -> float:
        return 2 * m * n * k / gemm_seconds(m, n, k, device(), "bf16") / 989e12

    assert reached(8192, 8192, 8192) == pytest.approx(device().efficiency.gemm_at_power_limit)
    assert reached(8192, 8192, 128) < 0.5 * reached(8192, 8192, 8192)
    assert reached(32, 8192, 8192) < 0.2 * reached(8192, 8192, 8192)
    assert reached(768, 768, 16384) > 1.5 * reached(768, 768, 1024)  # the sum goes over the processors that tiles leave
    # 132 processors: 11 x 12 tiles of 128 x 256 fill them once, one column of tiles more takes a second wave.
    assert reached(11 * 128, 13 * 256, 512) < 0.7 * reached(11 * 128, 12 * 256, 512)


def test_a_dtype_without_a_datasheet_figure_runs_as_fp32() -> None:
    shape = (4096, 4096, 4096)
    assert gemm_seconds(*shape, device("V100"), "bf16") == pytest.approx(
        gemm_seconds(*shape, device("V100"), "fp32"), rel=0.01
    )


def test_attention_grows_with_the_square_of_the_length() -> None:
    def taken(length: int, kernels: Any = TORCH, head: int = 128) -> Any:
        return attention_seconds(1, length, 2048 / head, head, device(), "bf16", kernels)

    assert taken(262144).forward / taken(65536).forward == pytest.approx(16, rel=0.03)
    assert taken(65536).forward / taken(16384).forward == pytest.approx(15.2, rel=0.01), "of few heads the last blocks"
    assert taken(4096).backward > 2 * taken(4096).forward
    assert taken(4096, TRANSFORMER_ENGINE) == taken(4096)  # both are cuDNN's on Hopper
    assert taken(4096, TORCH, 64).forward > 1.1 * taken(4096).forward  # twice the exponentials for the same FLOPs


@pytest.mark.parametrize("length", [8192, 131072])
@pytest.mark.parametrize("parts", [2, 8, 32])
def test_a_sequence_in_parts_is_as_much_attention_as_whole(length: int, parts: int) -> None:
    """Context parallelism: 2.2 heads of the whole sequence were added to each part of it, and at any length."""
    of_8_heads = [
        attention_seconds(1 / each, length, 8, 128, device(), "bf16", TRANSFORMER_ENGINE, parts=each)
        for each in (1, parts)
    ]
    whole, part = of_8_heads
    assert (part.forward * parts, part.backward * parts) == pytest.approx((whole.forward, whole.backward))
    many = attention_seconds(4, length, 8, 128, device(), "bf16", TRANSFORMER_ENGINE)
    assert 1.0 < 4 * whole.forward / many.forward < 1 + 2.2 * 4096 / length / 8


LENGTHS = (512, 1024, 2048, 4096)


def measured_us(case: str) -> tuple[float, float]:
    """Forward and backward pass of attention, measured with Transformer Engine's (cuDNN's)."""
    forward, backward = (
        float(record("kernels", case=f"attention, {case}", quantity=pass_, unit="us")["value"])
        for pass_ in ("forward", "backward")
    )
    return forward, backward


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize(("width", "causal"), [(64, True), (64, False), (128, True), (128, False)])
def test_attention_takes_as_long_as_alone_or_a_quarter_more(width: int, causal: bool, drops: bool) -> None:
    """16 heads and 8,192 tokens on an H200 that does nothing else. In a step the GPU is at its power limit: of long
    sequences and heads of 128 a fifth is measured there.
    """
    shape = f"heads of {width}{', causal' if causal else ''}{', 0.1 dropped' if drops else ''}"
    for length in LENGTHS:
        forward, backward = measured_us(f"16 heads, 8,192 tokens in sequences of {length:,}, {shape}")
        found = attention_seconds(
            8192 / length, length, 16, width, device("H200"), "bf16", TRANSFORMER_ENGINE, causal=causal, drops=drops
        )
        assert 0.95 < found.forward * 1e6 / forward < 1.28, length
        assert 0.95 < found.backward * 1e6 / backward < 1.28, length


@pytest.mark.parametrize(
    "shape",
    [
        "2 sequences, 16 heads of 96, causal",
        "2 sequences, 8 heads of 192, causal",
        "2 sequences, 4 heads of 256, causal",
        "1 sequences, 16 heads of 72",
        "1 sequences, 16 heads of 80",
        "1 sequences, 8 heads of 256",
    ],
)
def test_heads_of_other_widths_take_as_long_as_the_kernels_for_them(shape: str) -> None:
    """4,096 tokens on an H200 that does nothing else, with the same bounds but for one backward pass (0.90)."""
    forward, backward = measured_us(shape.replace(" sequences,", " sequences of 4,096 tokens,"))
    sequences, heads, width = (int(part.rstrip(",")) for part in shape.split() if part[0].isdigit())
    wide, slowdown = width_of_kernel(width, device("H200"))
    found = attention_seconds(
        *(sequences, 4096, heads, wide, device("H200"), "bf16", TRANSFORMER_ENGINE), causal="causal" in shape
    )
    assert 0.95 < found.forward * slowdown.forward * 1e6 / forward < 1.28
    assert 0.89 < found.backward * slowdown.backward * 1e6 / backward < 1.28


def test_heads_are_as_wide_as_they_are_where_no_kernels_were_measured() -> None:
    assert [width_of_kernel(72, device(name))[0] for name in ("H200", "B200")] == [128, 72]


LONG = {
    (8, 128): (8192, 16384, 32768, 131072),
    (16, 128): (8192, 16384, 32768),
    (32, 128): (8192, 16384),
    (16, 64): (8192, 16384, 32768),
}
"""Tokens of one causal sequence, by heads and their width, on an H100 between matrix products, which keep it warm."""


@pytest.mark.parametrize(("heads", "width"), LONG)
def test_attention_of_long_sequences_is_within_10_percent(heads: int, width: int) -> None:
    for length in LONG[heads, width]:
        measured = measured_us(f"causal, {heads} heads of {width}, {length:,} tokens")
        found = attention_seconds(1, length, heads, width, device("H100"), "bf16", TRANSFORMER_ENGINE)
        assert (found.forward * 1e6, found.backward * 1e6) == pytest.approx(measured, rel=0.10), length


def test_dropping_scores_takes_longer_than_multiplying_them() -> None:
    """Measured with heads of 64: the forward pass 2.2 times as long, the backward pass 1.2 times."""
    kept, dropped = (
        attention_seconds(8, 1024, 16, 64, device(), "bf16", TRANSFORMER_ENGINE, drops=drops) for drops in (False, True)
    )
    assert dropped.forward == pytest.approx(2.2 * kept.forward, rel=0.05)
    assert dropped.backward == pytest.approx(1.2 * kept.backward, rel=0.05)


@pytest.mark.parametrize(
    ("nodes", "size", "stride", "gigabytes"),
    [
        (1, 4, 1, 450 * 0.55),  # inside a machine
        (2, 16, 1, 450 * 0.55),  # eight ranks of it share eight ports, which are faster than the link
        (2, 2, 8, 50 * 0.9),  # one rank in each machine
        (2, 4, 4, 2 * 50 * 0.9),
    ],
)
def test_where_a_group_lies_decides_its_bandwidth(
    make_job: Any, nodes: int, size: int, stride: int, gigabytes: float
) -> None:
    job = make_job(launch={"nodes": nodes, "gpus_per_node": 16 // nodes if nodes > 1 else 8})
    group = group_of(job, device(), size, stride)
    assert group.bandwidth == pytest.approx(gigabytes * 1e9)
    assert group.gather_seconds(1e9) == pytest.approx(1e9 * (size - 1) / size / group.bandwidth + group.latency)
    assert group_of(job, device(), 1, stride).gather_seconds(1e9) == 0.0


@given(seconds=st.floats(0, 10), window=st.floats(0, 10))
def test_hiding_never_costs_more_than_waiting(make_job: Any, seconds: float, window: float) -> None:
    group = group_of(make_job(launch={"gpus_per_node": 8}), device(), 8, 1)
    assert max(0.0, seconds - window) <= group.hidden(seconds, window) <= seconds
    assert group.pipelined(seconds, window) <= seconds


@given(
    stages=st.integers(2, 8),
    chunks=st.sampled_from([1, 2, 4]),
    rounds=st.integers(1, 6),
    first=st.floats(0.0, 0.1),
    last=st.floats(0.0, 0.3),
    transfer=st.floats(0.0, 0.01),
)
def test_the_closed_form_is_the_schedule_played_through(
    stages: int, chunks: int, rounds: int, first: float, last: float, transfer: float
) -> None:
    """With an embedding on the first stage and an output layer on the last."""
    forward = [[1.0 / chunks] * chunks for _ in range(stages)]
    backward = [[2.0 / chunks] * chunks for _ in range(stages)]
    forward[0][0] += first
    backward[0][0] += first
    forward[-1][-1] += last
    backward[-1][-1] += 2 * last
    if chunks == 1:
        transfer = 0.0  # 1F1B waits for its sends: they are part of its passes
    micro_batches = stages * rounds
    played = timeline(forward, backward, micro_batches, transfer).seconds
    assert closed_form(forward, backward, micro_batches, transfer) == pytest.approx(played, rel=0.06)


def test_equal_stages_have_the_bubble_of_the_paper() -> None:
    """(p - 1) / m of the passes' time, over v with v virtual stages."""
    for chunks in (1, 2):
        forward, backward = [[1.0 / chunks] * chunks] * 4, [[2.0 / chunks] * chunks] * 4
        for micro_batches in (8, 64):
            expected = 3.0 * (micro_batches + 3 / chunks)
            assert pipeline_seconds(forward, backward, micro_batches, 0.0) == pytest.approx(expected)
            assert closed_form(forward, backward, micro_batches, 0.0) == pytest.approx(expected)
