"""Batch arithmetic, step by step and against megatron-core's own calculator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.batch import BatchSchedule


def test_a_constant_batch(make_job: Any) -> None:
    schedule = BatchSchedule.of(make_job(parallelism={"data_parallel_size": 2}))
    assert schedule.global_batch_size(0) == schedule.global_batch_size(10**9) == 8
    assert schedule.num_micro_batches(0) == 2
    assert (schedule.train_iters, schedule.train_samples, schedule.train_tokens) == (100, 800, 25600)
    assert schedule.iteration_of(80) == 10
    assert schedule.samples_at(10) == 80


@pytest.mark.parametrize(
    ("length", "iterations"),
    [
        ({"train_iters": 7}, 7),
        ({"train_samples": 56}, 7),
        ({"train_samples": 57}, 8),
        ({"train_tokens": 56 * 32}, 7),
        ({"train_tokens": 56 * 32 + 1}, 8),
        ({"train_tokens": 1}, 1),
    ],
)
def test_every_length_becomes_whole_steps(make_job: Any, length: dict[str, int], iterations: int) -> None:
    schedule = BatchSchedule.of(make_job(schedule={"train_iters": None, **length}))
    assert schedule.train_iters == iterations
    assert schedule.train_samples == iterations * 8


def test_rampup_by_hand(make_job: Any) -> None:
    # From 2 by 2 to 8 over 12 samples: a larger batch after each 4 samples.
    schedule = BatchSchedule.of(make_job(batch={"rampup_batch_size": [2, 2, 12]}, schedule={"train_iters": 6}))
    consumed, sizes = 0, []
    for _ in range(6):
        sizes.append(schedule.global_batch_size(consumed))
        consumed += sizes[-1]
    assert sizes == [2, 2, 4, 6, 8, 8]
    assert schedule.train_samples == consumed == 30
    assert [stage.first_iteration for stage in schedule.stages] == [0, 2, 3, 4]


def test_rampup_is_rounded_to_whole_passes_and_never_to_nothing(make_job: Any) -> None:
    job = make_job(
        parallelism={"data_parallel_size": 4},
        batch={"global_batch_size": 32, "rampup_batch_size": [4, 4, 700]},
    )
    schedule = BatchSchedule.of(job)
    assert set(schedule.sizes) == {8, 16, 24, 32}
    assert schedule.num_micro_batches(0) == 1


@given(
    micro=st.integers(1, 4),
    replicas=st.integers(1, 4),
    start_passes=st.integers(1, 5),
    increment=st.integers(1, 40),
    increments=st.integers(1, 30),
    samples=st.integers(1, 100_000),
    length=st.integers(1, 400),
)
def test_rampup_is_megatrons(
    make_job: Any,
    micro: int,
    replicas: int,
    start_passes: int,
    increment: int,
    increments: int,
    samples: int,
    length: int,
) -> None:
    from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

    pass_size = micro * replicas
    start = start_passes * pass_size
    full = start + increment * increments
    job = make_job(
        parallelism={"data_parallel_size": replicas},
        batch={"micro_batch_size": micro, "global_batch_size": full, "rampup_batch_size": [start, increment, samples]},
        schedule={"train_iters": length},
    )
    schedule = BatchSchedule.of(job)
    reference = RampupBatchsizeNumMicroBatchesCalculator(full, micro, replicas, True, 1, start, increment, samples)
    consumed = 0
    for iteration in range(length):
        reference.update(consumed, consistency_check=False)
        size = schedule.global_batch_size(consumed)
        assert size == reference.get_current_running_global_batch_size()
        assert schedule.num_micro_batches(consumed) == reference.get()
        assert schedule.iteration_of(consumed) == iteration
        assert schedule.samples_at(iteration) == consumed
        consumed += size
    assert schedule.train_samples == consumed
    by_samples = BatchSchedule.of(
        job.model_copy(
            update={"schedule": job.schedule.model_copy(update={"train_iters": None, "train_samples": consumed})}
        )
    )
    assert by_samples.train_iters == length
