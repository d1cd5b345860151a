"""Batch arithmetic, step by step and against megatron-core's own calculator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core import num_microbatches_calculator

from orchestrator.errors import SpecError
from orchestrator.planning.training_schedule.batch import BatchSchedule, Progress
from orchestrator.planning.training_schedule.hyperparameters import HyperparameterSchedule
from orchestrator.spec.job import JobSpec

# megatron-core 0.19 has no linear ramp-up any more; ours stays what that of 0.16 is.
MegatronRampup = getattr(num_microbatches_calculator, "RampupBatchsizeNumMicroBatchesCalculator", None)
RAMPUPS = ((8, 8, 80), (8, 16, 64), (16, 8, 83), (24, 8, 300)) if MegatronRampup else ()


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


@given(
    samples=st.integers(40, 400),
    rampup=st.sampled_from((None, *RAMPUPS)),
    stops=st.integers(0, 6),
)
def test_steps_are_those_of_megatron_lm_where_the_last_batch_is_dropped(
    make_job: Any, samples: int, rampup: tuple[int, int, int] | None, stops: int
) -> None:
    batch = {"global_batch_size": 40, "rampup_batch_size": rampup and list(rampup)}
    length = {"train_iters": None, "train_samples": samples, "drop_last": True}
    job = make_job(batch=batch, schedule=length)
    schedule = BatchSchedule.of(job)
    iterations, consumed = _steps_in_megatron(samples, 40, rampup)
    assert (schedule.train_iters, schedule.train_samples) == (iterations, consumed)
    assert (schedule.written_samples, schedule.drawn_samples) == (samples, max(samples, consumed))
    stops = min(stops, iterations)
    done = Progress(stops, schedule.samples_at(stops))
    assert BatchSchedule.of(job, done).train_iters == iterations, "and where it goes on"


def _steps_in_megatron(samples: int, full: int, rampup: tuple[int, int, int] | None) -> tuple[int, int]:
    """`update_train_iters` of core_v0.16.1, and the samples that these steps take."""
    if rampup is None:
        return samples // full, samples // full * full
    calculator = MegatronRampup(full, 1, 1, False, 1, *rampup)
    iterations = consumed = 0
    while consumed <= rampup[2] and consumed <= samples:
        calculator.update(consumed, False)
        consumed += calculator.get_current_global_batch_size()
        iterations += 1
    more = max(0, samples - consumed) // full
    return iterations + more, consumed + more * full


def test_rates_keep_to_the_length_as_it_is_written(make_job: Any) -> None:
    increasing = {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.1}
    length = {"train_iters": None, "train_samples": 57}
    rounded_up = HyperparameterSchedule.of(make_job(schedule=length, optimizer=increasing))
    assert (rounded_up.rates.decay_samples, rounded_up.weight_decay.samples) == (64, 64)
    dropped = HyperparameterSchedule.of(make_job(schedule={**length, "drop_last": True}, optimizer=increasing))
    assert (dropped.rates.decay_samples, dropped.weight_decay.samples) == (57, 57)


def test_a_length_that_is_rounded_down_to_nothing_is_refused(make_job: Any) -> None:
    job = make_job(schedule={"train_iters": None, "train_samples": 7, "drop_last": True})
    with pytest.raises(SpecError) as refused:
        JobSpec.model_validate(job.model_dump())
    assert [problem.paths[0] for problem in refused.value.problems] == ["schedule.train_samples"]


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


@pytest.mark.skipif(MegatronRampup is None, reason="this megatron-core has no linear ramp-up to compare with")
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
    pass_size = micro * replicas
    start = start_passes * pass_size
    full = start + increment * increments
    job = make_job(
        parallelism={"data_parallel_size": replicas},
        batch={"micro_batch_size": micro, "global_batch_size": full, "rampup_batch_size": [start, increment, samples]},
        schedule={"train_iters": length},
    )
    schedule = BatchSchedule.of(job)
    reference = MegatronRampup(full, micro, replicas, True, 1, start, increment, samples)
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
