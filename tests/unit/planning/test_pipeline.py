"""The pipeline's order of passes against megatron-core's own, and its times against closed forms."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.layout.pipeline import Pass, in_flight, passes_of, timeline

LAYOUTS = [
    (stages, chunks, groups * stages) for stages in (2, 3, 4, 8) for chunks in (1, 2, 3, 5) for groups in (1, 2, 4)
] + [(4, 1, 1), (4, 1, 3), (8, 1, 5), (3, 1, 7)]


def megatrons(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """The passes of a stage as megatron-core's schedules do them: warm-up, one forward and one backward, the rest."""
    from megatron.core.pipeline_parallel import schedules

    communicator: Any = SimpleNamespace(
        pp_group=SimpleNamespace(size=lambda: stages, rank=lambda: stage),
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    )
    total, _, warmup, remaining = schedules.get_pp_rank_microbatches(
        micro_batches, chunks, stages, p2p_communicator=communicator
    )
    table = schedules.get_schedule_table(micro_batches, chunks, stages)
    forwards = [Pass(True, chunk, micro_batch) for micro_batch, chunk in table]
    backwards = [Pass(False, chunks - 1 - chunk, micro_batch) for micro_batch, chunk in table]
    order = forwards[:warmup]
    for number in range(remaining):
        order += [forwards[warmup + number], backwards[number]]
    order += backwards[remaining:]
    assert len(order) == 2 * total
    return order


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), LAYOUTS)
def test_the_order_is_megatrons(stages: int, chunks: int, micro_batches: int) -> None:
    for stage in range(stages):
        assert passes_of(stage, stages, chunks, micro_batches) == megatrons(stage, stages, chunks, micro_batches)


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches", "expected"),
    [
        (1, 1, 6, [1]),
        (4, 1, 8, [4, 3, 2, 1]),
        (4, 1, 2, [2, 2, 2, 1]),
        # The first stage holds (v - 1) p + 2 (p - 1) + 1 chunks, 1 + (p - 1) / (p v) of what 1F1B holds there.
        (4, 2, 8, [11, 9, 7, 5]),
        (4, 2, 4, [8, 8, 7, 5]),
        (2, 4, 8, [9, 7]),
    ],
)
def test_activations_in_flight(stages: int, chunks: int, micro_batches: int, expected: list[int]) -> None:
    found = [in_flight(stage, stages, chunks, micro_batches) for stage in range(stages)]
    assert [{sum(held) for held in states} for states in found] == [{count} for count in expected]


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [each for each in LAYOUTS if each[2] >= each[0]])
def test_equal_stages_take_what_the_closed_form_says(stages: int, chunks: int, micro_batches: int) -> None:
    forward, backward = 3, 5  # of a whole stage over a micro-batch, as whole numbers of chunks' times
    step = timeline([[forward] * chunks] * stages, [[backward] * chunks] * stages, micro_batches)
    work = Fraction(micro_batches * chunks * (forward + backward))
    bubble = Fraction((stages - 1) * (forward + backward))  # of chunks' times: (p - 1)(f + b) / v of whole stages'
    assert step.seconds == work + bubble
    assert [step.idle(stage) for stage in range(stages)] == [bubble] * stages


@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=15, max_size=15),
    st.integers(0, 3),
)
def test_every_pass_runs_once_and_after_what_it_needs(
    stages: int, chunks: int, groups: int, times: list[tuple[int, int]], transfer: int
) -> None:
    if stages == 1:
        chunks = 1
    micro_batches = groups * stages
    costs = [times[stage * chunks : (stage + 1) * chunks] for stage in range(stages)]
    forward = [[one for one, _ in row] for row in costs]
    backward = [[two for _, two in row] for row in costs]
    step = timeline(forward, backward, micro_batches, transfer)
    place = {}
    for stage, spans in enumerate(step.spans):
        assert [span.what for span in spans] == passes_of(stage, stages, chunks, micro_batches)
        for before, after in pairwise(spans):
            assert after.start >= before.end
        for span in spans:
            cost = (forward if span.what.forward else backward)[stage][span.what.chunk]
            assert (span.stage, span.end - span.start) == (stage, cost)
            place[span.what.forward, span.what.chunk * stages + stage, span.what.micro_batch] = span
    assert len(place) == 2 * stages * chunks * micro_batches
    last = stages * chunks - 1
    for (is_forward, part, micro_batch), span in place.items():
        needed = None
        if is_forward and part > 0:
            needed = place[True, part - 1, micro_batch]
        elif not is_forward:
            needed = place[False, part + 1, micro_batch] if part < last else place[True, part, micro_batch]
        if needed is not None:
            wait = transfer if needed.stage != span.stage else 0
            assert span.start >= needed.end + wait
    assert step.seconds == max(spans[-1].end for spans in step.spans)
