"""Learning rates and weight decay of every step, against megatron-core's OptimizerParamScheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.depth import examples
from support.problems import codes

from orchestrator.planning.training_schedule.hyperparameters import HyperparameterSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules import check
from tests.unit.planning.conftest import build_job

STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
FINAL_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
PART = st.floats(0, 1)
GLOBAL_BATCH = 8


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, Any]:
    """`optimizer` and `schedule` of a job, with Megatron's words for the same thing."""
    lr, decoupled = draw(st.floats(1e-6, 1.0)), draw(st.floats(1e-6, 1.0))
    decay, steps = draw(st.integers(2, 60)), draw(st.integers(1, 60))
    warmup = draw(st.integers(0, decay - 1))
    final = draw(st.integers(0, decay - warmup))
    style, final_style = draw(st.sampled_from(STYLES)), draw(st.sampled_from(FINAL_STYLES))
    in_samples = draw(st.booleans())
    kind, unit = ("samples", GLOBAL_BATCH) if in_samples else ("iters", 1)
    optimizer: dict[str, Any] = {"lr": lr, "min_lr": draw(PART) * min(lr, decoupled)}
    if draw(st.booleans()):
        optimizer |= {"decoupled_lr": decoupled, "decoupled_min_lr": draw(PART) * decoupled}
    start = end = 0.01
    incr = draw(st.sampled_from(("constant", "linear", "cosine")))
    if incr != "constant":
        end = draw(st.floats(0, 1))
        start = draw(PART) * end
        optimizer |= {"weight_decay_incr_style": incr, "start_weight_decay": start, "end_weight_decay": end}
    schedule = {
        "train_iters": steps,
        "lr_decay_style": style,
        f"lr_decay_{kind}": decay * unit,
        f"lr_warmup_{kind}": warmup * unit,
        "lr_warmup_init": draw(PART) * lr,
    }
    if style == "WSD":
        schedule |= {"lr_wsd_decay_style": final_style, f"lr_wsd_decay_{kind}": final * unit}
    megatron = {
        "init_lr": schedule["lr_warmup_init"],
        "max_lr": lr,
        "min_lr": optimizer["min_lr"],
        "lr_warmup_steps": warmup * GLOBAL_BATCH,
        "lr_decay_steps": decay * GLOBAL_BATCH,
        "lr_decay_style": style,
        "start_wd": start,
        "end_wd": end,
        "wd_incr_steps": steps * GLOBAL_BATCH,
        "wd_incr_style": incr,
        "wsd_decay_steps": final * GLOBAL_BATCH,
        "lr_wsd_decay_style": final_style,
    }
    return {"optimizer": optimizer, "schedule": schedule, "megatron": megatron}


@given(drawn=schedules())
@settings(max_examples=examples(120))
def test_every_step_is_megatrons(make_job: Any, drawn: dict[str, Any]) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    optimizer, schedule, megatron = drawn["optimizer"], drawn["schedule"], drawn["megatron"]
    job = make_job(optimizer=optimizer, schedule=schedule)
    assume(job.global_batch_size == GLOBAL_BATCH)
    plain: dict[str, Any] = {"params": []}
    decoupled: dict[str, Any] = {"params": []}
    if "decoupled_lr" in optimizer:
        decoupled |= {"max_lr": optimizer["decoupled_lr"], "min_lr": optimizer["decoupled_min_lr"]}
    reference = OptimizerParamScheduler(SimpleNamespace(param_groups=[plain, decoupled]), **megatron)
    ours = HyperparameterSchedule.of(job)
    for step in range(schedule["train_iters"] + 5):
        values = ours.at(step * GLOBAL_BATCH)
        assert values.lr == pytest.approx(plain["lr"], rel=1e-12, abs=1e-18)
        assert values.decoupled_lr == pytest.approx(decoupled["lr"], rel=1e-12, abs=1e-18)
        assert values.weight_decay == pytest.approx(plain["weight_decay"], rel=1e-12, abs=1e-18)
        reference.step(GLOBAL_BATCH)


def test_a_fraction_of_warmup_before_the_stable_part(make_job: Any) -> None:
    """Steps of 8 samples: 10 of warm-up, stable to 80, and 20 down to the lowest rate."""
    schedule = {"lr_decay_style": "WSD", "lr_warmup_fraction": 0.1, "lr_wsd_decay_iters": 20}
    rates = HyperparameterSchedule.of(make_job(schedule={**schedule, "lr_wsd_decay_style": "linear"})).rates
    assert [rates.at(8 * step) for step in (0, 10, 80)] == [0.0, 1e-3, 1e-3]
    assert rates.at(8 * 90) == pytest.approx((1e-3 + 1e-4) / 2)
    assert rates.at(8 * 100) == pytest.approx(1e-4)


def test_steps_of_the_decay_at_the_end_are_counted_under_a_ramp(make_job: Any) -> None:
    schedule = {"lr_decay_style": "WSD", "lr_decay_iters": 6, "lr_wsd_decay_iters": 2}
    rates = HyperparameterSchedule.of(make_job(batch={"rampup_batch_size": [2, 2, 12]}, schedule=schedule)).rates
    assert rates.decay_samples == 2 + 2 + 4 + 6 + 8 + 8
    assert rates.final_samples == 8 + 8


RAMP = {"rampup_batch_size": [2, 2, 12]}  # steps of 2, 2, 4, 6 and then 8 samples


UNDER_A_RAMP: list[tuple[dict[str, Any], list[str]]] = [
    # 5 steps are 22 samples; the last three of them are 4 + 6 + 8.
    ({"lr_warmup_iters": 2, "lr_wsd_decay_iters": 3}, []),
    ({"lr_warmup_iters": 3, "lr_wsd_decay_iters": 3}, ["wsd_decay_length schedule.lr_wsd_decay_iters"]),
    ({"lr_warmup_samples": 5, "lr_wsd_decay_iters": 3}, ["wsd_decay_length schedule.lr_wsd_decay_iters"]),
    ({"lr_wsd_decay_iters": 5}, []),
    ({"lr_wsd_decay_iters": 6}, ["wsd_decay_length schedule.lr_wsd_decay_iters"]),
    ({"lr_wsd_decay_samples": 22}, []),
    ({"lr_wsd_decay_samples": 23}, ["wsd_decay_length schedule.lr_wsd_decay_samples"]),
    # A length in samples is rounded up to whole steps, here to 5.
    ({"train_iters": None, "train_samples": 15, "lr_warmup_iters": 2, "lr_wsd_decay_iters": 3}, []),
    (
        {"train_iters": None, "train_samples": 14, "lr_warmup_iters": 2, "lr_wsd_decay_iters": 3},
        ["wsd_decay_length schedule.lr_wsd_decay_iters"],
    ),
    ({"lr_decay_style": "linear", "lr_warmup_samples": 21}, []),
    ({"lr_decay_style": "linear", "lr_warmup_samples": 22}, ["warmup_below_decay schedule.lr_warmup_samples"]),
]


def under_a_ramp(schedule: dict[str, Any]) -> JobSpec:
    return build_job(batch=RAMP, schedule={"train_iters": 5, "lr_decay_style": "WSD", **schedule})


@pytest.mark.parametrize(("schedule", "expected"), UNDER_A_RAMP)
def test_lengths_are_compared_under_a_ramp(schedule: dict[str, Any], expected: list[str]) -> None:
    job = under_a_ramp(schedule)
    assert codes(check(job)) == expected
    if expected:
        return
    rates = HyperparameterSchedule.of(job).rates
    before = rates.decay_samples - rates.final_samples
    assert rates.warmup_samples <= before
    assert rates.at(rates.decay_samples) == pytest.approx(1e-4)


WRONG: list[tuple[dict[str, dict[str, Any]], list[str]]] = [
    ({"schedule": {"lr_decay_style": "WSD"}}, ["wsd_decay schedule.lr_decay_style"]),
    (
        {"schedule": {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 2, "lr_wsd_decay_samples": 16}},
        ["wsd_decay schedule.lr_wsd_decay_samples"],
    ),
    ({"schedule": {"lr_wsd_decay_iters": 2}}, ["wsd_only schedule.lr_wsd_decay_iters"]),
    (
        {"schedule": {"lr_decay_style": "WSD", "lr_warmup_iters": 10, "lr_wsd_decay_iters": 91}},
        ["wsd_decay_length schedule.lr_wsd_decay_iters"],
    ),
    ({"optimizer": {"sgd_momentum": 0.5}}, ["sgd_only optimizer.sgd_momentum"]),
    ({"optimizer": {"name": "sgd", "adam_beta2": 0.95}}, ["adam_only optimizer.adam_beta2"]),
    ({"optimizer": {"name": "sgd", "exp_avg_dtype": "bf16"}}, ["adam_only optimizer.exp_avg_dtype"]),
    ({"optimizer": {"name": "muon", "exp_avg_sq_dtype": "bf16"}}, ["adam_only optimizer.exp_avg_sq_dtype"]),
    ({"optimizer": {"name": "sgd", "offload_fraction": 1.0}}, ["adam_only optimizer.offload_fraction"]),
    ({"optimizer": {"name": "muon", "offload_fraction": 0.5}}, ["adam_only optimizer.offload_fraction"]),
    (
        {"optimizer": {"offload_fraction": 0.5}, "parallelism": {"use_distributed_optimizer": False}},
        ["offload_without_sharding optimizer.offload_fraction"],
    ),
    ({"optimizer": {"muon_split_qkv": False}}, ["muon_only optimizer.muon_split_qkv"]),
    ({"optimizer": {"name": "muon", "sgd_momentum": 0.5}}, ["sgd_only optimizer.sgd_momentum"]),
    (
        {"optimizer": {"name": "muon", "muon_num_ns_steps": 6}},
        ["whole_cycles_of_coefficients optimizer.muon_num_ns_steps"],
    ),
    ({"optimizer": {"name": "muon"}, "model": {"lora": {"rank": 4}}}, ["no_adapters_with_muon optimizer.name"]),
    ({"optimizer": {"end_weight_decay": 0.1}}, ["increasing_weight_decay optimizer.end_weight_decay"]),
    (
        {"optimizer": {"weight_decay_incr_style": "linear", "end_weight_decay": 0.1}},
        ["increasing_weight_decay optimizer.weight_decay_incr_style"],
    ),
    (
        {"optimizer": {"weight_decay_incr_style": "cosine", "start_weight_decay": 0.2, "end_weight_decay": 0.1}},
        ["increasing_weight_decay optimizer.start_weight_decay"],
    ),
    ({"optimizer": {"decoupled_min_lr": 0.0}}, ["decoupled_learning_rate optimizer.decoupled_min_lr"]),
    ({"optimizer": {"decoupled_lr": 1e-05}}, ["decoupled_learning_rate optimizer.decoupled_lr"]),
    (
        {"optimizer": {"apply_wd_to_qk_layernorm": True}},
        ["weight_decay_of_qk_norms optimizer.apply_wd_to_qk_layernorm"],
    ),
]


@pytest.mark.parametrize(("sections", "expected"), WRONG)
def test_what_contradicts_itself_is_refused(sections: dict[str, dict[str, Any]], expected: list[str]) -> None:
    assert codes(check(build_job(**sections))) == expected


@pytest.mark.parametrize("name", ["dist_muon", "AdamW"])
def test_an_optimizer_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        build_job(optimizer={"name": name})
