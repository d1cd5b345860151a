"""The learning rate, against megatron-core's OptimizerParamScheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.learning_rate import LearningRateSchedule, learning_rate

STYLES = ("constant", "linear", "cosine", "inverse-square-root")


@given(
    style=st.sampled_from(STYLES),
    lr=st.floats(1e-6, 1.0),
    min_part=st.floats(0, 1),
    init_part=st.floats(0, 1),
    warmup=st.integers(0, 500),
    decay=st.integers(1, 2000),
    consumed=st.integers(0, 3000),
)
def test_the_rate_is_megatrons(
    make_job: Any, style: str, lr: float, min_part: float, init_part: float, warmup: int, decay: int, consumed: int
) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    assume(warmup < decay)
    job = make_job(
        optimizer={"lr": lr, "min_lr": min_part * lr},
        schedule={
            "lr_decay_style": style,
            "lr_decay_samples": decay,
            "lr_warmup_samples": warmup,
            "lr_warmup_init": init_part * lr,
        },
    )
    group: dict[str, Any] = {"params": []}
    reference = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]),
        init_lr=init_part * lr,
        max_lr=lr,
        min_lr=min_part * lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=decay,
        lr_decay_style=style,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=1,
        wd_incr_style="constant",
    )
    reference.step(consumed)
    assert learning_rate(job, consumed) == pytest.approx(group["lr"], rel=1e-14, abs=0)


def test_the_first_and_last_steps(make_job: Any) -> None:
    job = make_job(schedule={"lr_warmup_iters": 10})
    assert learning_rate(job, 0) == 0.0
    assert learning_rate(job, 5 * 8) == pytest.approx(0.5e-3)
    assert learning_rate(job, 10 * 8) == 1e-3
    assert learning_rate(job, 100 * 8) == pytest.approx(1e-4)
    assert learning_rate(job, 101 * 8) == 1e-4


def test_iterations_and_fractions_become_samples_under_rampup(make_job: Any) -> None:
    batch = {"rampup_batch_size": [2, 2, 12]}
    job = make_job(batch=batch, schedule={"lr_warmup_iters": 3, "lr_decay_iters": 6})
    schedule = LearningRateSchedule.of(job)
    assert schedule.warmup_samples == 2 + 2 + 4
    assert schedule.decay_samples == 2 + 2 + 4 + 6 + 8 + 8
    part = LearningRateSchedule.of(make_job(batch=batch, schedule={"lr_warmup_fraction": 0.01}))
    assert part.decay_samples == BatchSchedule.of(job).train_samples
    assert part.warmup_samples == pytest.approx(part.decay_samples * 0.01)


@pytest.mark.parametrize("style", STYLES)
def test_a_warmup_as_long_as_the_decay_never_divides_by_zero(make_job: Any, style: str) -> None:
    job = make_job(schedule={"lr_warmup_fraction": 1.0, "lr_decay_style": style})
    assert learning_rate(job, 800) == 1e-3
    assert learning_rate(job, 801) == (1e-3 if style == "constant" else 1e-4)
