"""Matrix products, attention, groups of ranks and the pipeline, each by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.layout.pipeline import timeline
from orchestrator.planning.time.communication import group_of
from orchestrator.planning.time.kernels.accesses import TORCH, TRANSFORMER_ENGINE
from orchestrator.planning.time.kernels.attention import attention_seconds
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


ALONE = {
    (64, True): [(41, 146), (61, 197), (101, 306), (166, 472)],
    (64, False): [(49, 169), (85, 265), (158, 435), (291, 790)],
    (128, True): [(54, 222), (83, 293), (142, 449), (235, 725)],
    (128, False): [(70, 273), (116, 404), (212, 682), (408, 1348)],
}
"""us forward and backward of 16 heads and 8,192 tokens in sequences of 512, 1,024, 2,048 and 4,096, by width of a head
and causality: cuDNN's on an H200 that does nothing else (docs/benchmarks/2026-11-23-h200-7.md)."""
ALONE_AND_DROPPING = {
    (64, True): [(82, 163), (139, 238), (243, 392), (420, 643)],
    (64, False): [(111, 205), (207, 338), (402, 582), (763, 1060)],
    (128, True): [(98, 242), (162, 338), (288, 537), (503, 883)],
    (128, False): [(137, 328), (254, 509), (489, 895), (948, 1705)],
}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize(("width", "causal"), ALONE)
def test_attention_takes_as_long_as_alone_or_a_quarter_more(width: int, causal: bool, drops: bool) -> None:
    """In a step the GPU is at its power limit: of long sequences and heads of 128 a fifth is measured there."""
    rows = (ALONE_AND_DROPPING if drops else ALONE)[width, causal]
    for length, (forward, backward) in zip((512, 1024, 2048, 4096), rows, strict=True):
        found = attention_seconds(
            8192 / length, length, 16, width, device("H200"), "bf16", TRANSFORMER_ENGINE, causal=causal, drops=drops
        )
        assert 0.95 < found.forward * 1e6 / forward < 1.28, length
        assert 0.95 < found.backward * 1e6 / backward < 1.28, length


LONG = {
    (8, 128): {8192: (322, 928), 16384: (1085, 2871), 32768: (3812, 10648), 131072: (62266, 168309)},
    (16, 128): {8192: (558, 1654), 16384: (2009, 5658), 32768: (7386, 21099)},
    (32, 128): {8192: (1028, 3113), 16384: (3809, 11105)},
    (16, 64): {8192: (374, 1085), 16384: (1307, 3699), 32768: (4776, 13750)},
}
"""us forward and backward of one causal sequence, by heads, their width and tokens: cuDNN's on an H100 between matrix
products, which keep it warm (docs/benchmarks/2026-11-25-h100-2.md)."""


@pytest.mark.parametrize(("heads", "width"), LONG)
def test_attention_of_long_sequences_is_within_10_percent(heads: int, width: int) -> None:
    for length, measured in LONG[heads, width].items():
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
