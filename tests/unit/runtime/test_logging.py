"""The lines of metrics: throughput by the model's FLOPs and the device's peak, and means over their steps."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.training import four_layer_job, make_run, values

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.runtime.callbacks.logging import MetricLogging, throughput
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.rank_agreement import Losses
from orchestrator.runtime.state import StepRecord
from orchestrator.tracking.measurements.metrics import read_metrics

H100 = "NVIDIA H100 80GB HBM3"


def session(name: str, world_size: int = 4, log_interval: int = 1, **sections: Any) -> Any:
    tracking = {"mlflow": False, "log_interval": log_interval}
    job = four_layer_job("job", precision={"dtype": "bf16"}, tracking=tracking, **sections)
    written: list[Any] = []
    return SimpleNamespace(
        job=job,
        processes=SimpleNamespace(
            ranks=SimpleNamespace(world_size=world_size, is_first=True),
            device=Device("cpu", torch.device("cpu"), "gloo", name),
        ),
        data=SimpleNamespace(
            vocabulary=SimpleNamespace(padded_size=256), schedule=SimpleNamespace(train_samples=40, train_iters=5)
        ),
        launch=SimpleNamespace(records=SimpleNamespace(metrics=lambda *record: written.append(record))),
        written=written,
    )


def test_throughput() -> None:
    here = session(H100)
    values = throughput(here, samples=16, seconds=0.5)
    tokens = 16 * 64
    flops = model_flops(here.job, tokens, 256)
    peak = peak_flops(H100, "bf16")
    assert peak is not None
    assert values == {
        "throughput/tokens_per_second": tokens / 0.5,
        "throughput/tflops_per_gpu": pytest.approx(flops / 0.5 / 4 / 1e12),
        "throughput/mfu": pytest.approx(flops / 0.5 / 4 / peak),
    }


def flops_per_token(scores: float) -> float:
    """Of the tiny GPT (4 layers, width 64, MLP of 256, 256 rows), whose queries attend to so many keys on average: two
    operations for each weight, and each score and its use, and twice as many backward.
    """
    weights = 4 * (4 * 64 * 64 + 2 * 64 * 256) + 256 * 64
    return 3 * 2 * (weights + 4 * 2 * 64 * scores)


FULL, CAUSAL = flops_per_token(64), flops_per_token(32)


def test_megatrons_count_stands_beside_ours_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    here, logging = session(H100, throughput={"flops": "causal"}), MetricLogging()
    logging.on_loss(here, record(1, seconds=1e-5), Losses(5.0, {"lm": 5.0}))
    [(*_, values, _)] = here.written
    rate = 8 * 64 / 1e-5 / 4
    assert {key: value for key, value in values.items() if "tflops" in key or "mfu" in key} == {
        "throughput/tflops_per_gpu": pytest.approx(CAUSAL * rate / 1e12),
        "throughput/tflops_per_gpu_full": pytest.approx(FULL * rate / 1e12),
        "throughput/mfu": pytest.approx(CAUSAL * rate / 989.4e12, rel=1e-3),
        "throughput/mfu_full": pytest.approx(FULL * rate / 989.4e12, rel=1e-3),
    }
    said = capsys.readouterr().out
    assert f"{CAUSAL * rate / 1e12:.3g} TFLOP/s" in said
    assert f"{FULL * rate / 1e12:.3g}" in said


def test_no_mfu_where_the_peak_is_unknown() -> None:
    assert "throughput/mfu" not in throughput(session("cpu"), samples=16, seconds=0.5)


def record(iteration: int, seconds: float = 1.0, grad_norm: float = 0.5, **fields: Any) -> StepRecord:
    return StepRecord(
        **{
            "iteration": iteration,
            "consumed_samples": 8 * iteration,
            "consumed_tokens": 8 * 64 * iteration,
            "samples": 8,
            "learning_rate": iteration * 1e-3,
            "grad_norm": grad_norm,
            "applied": True,
            "skipped_steps": iteration - 1,
            "skip_reason": None,
            "seconds": seconds,
            "loss_scale": None,
            "ended": 1e9 + iteration,
            **fields,
        }
    )


def test_rates_are_over_the_steps_since_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    here, logging = session("cpu", log_interval=2), MetricLogging()
    for iteration, seconds in [(1, 1.0), (2, 3.0), (3, 0.5), (4, 0.5), (5, 2.0)]:
        logging.on_loss(here, record(iteration, seconds), Losses(5.0 + iteration, {"lm": 5.0 + iteration}))
    assert len(here.written) == 2
    logging.on_end(here)
    # What is left at the end is written whatever the interval.
    assert [each[:3] for each in here.written] == [(2, 16, 1024), (4, 32, 2048), (5, 40, 2560)]
    assert [each[4] for each in here.written] == [1e9 + 2, 1e9 + 4, 1e9 + 5], "when the steps ended"
    rates = [each[3]["throughput/tokens_per_second"] for each in here.written]
    assert rates == [1024 / 4.0, 1024 / 1.0, 512 / 2.0]
    assert [each[3]["throughput/step_seconds"] for each in here.written] == [2.0, 0.5, 2.0]
    assert [each[3]["train/loss"] for each in here.written] == [6.5, 8.5, 10.0]
    assert [each[3]["train/skipped_steps"] for each in here.written] == [1, 3, 4]
    assert [each[3]["train/lr"] for each in here.written] == [2e-3, 4e-3, 5e-3], "in force at the last step"
    said = capsys.readouterr().out.splitlines()
    assert ["loss 6.500000" in said[0], "2000 ms" in said[0]] == [True, True]
    assert len(said) == 3


def test_a_line_has_the_means_of_all_that_its_steps_measured() -> None:
    """Parts of the loss, metrics of a step of one's own, losses of experts and the gradient's norm."""
    here, logging = session("cpu", log_interval=4), MetricLogging()
    for iteration in range(1, 5):
        parts = {"lm": 4.0 + iteration, "order": 0.5 * iteration}
        losses = Losses(sum(parts.values()), parts, {"moe/z_loss": 2.0 * iteration}, {"accuracy": iteration / 8})
        logging.on_loss(here, record(iteration, grad_norm=float(iteration)), losses)
    [line] = here.written
    assert {key: line[3][key] for key in line[3] if key.startswith("train/")} == {
        "train/loss": 6.5 + 1.25,
        "train/loss/lm": 6.5,
        "train/loss/order": 1.25,
        "train/moe/z_loss": 5.0,
        "train/accuracy": 2.5 / 8,
        "train/grad_norm": 2.5,
        "train/lr": 4e-3,
        "train/skipped_steps": 3,
    }


def test_a_step_that_was_skipped_does_not_hide_the_others() -> None:
    here, logging = session("cpu", log_interval=3), MetricLogging()
    steps = [(4.0, 1.0), (math.nan, math.nan), (6.0, math.inf), (math.nan, math.inf)]
    for iteration, (loss, norm) in enumerate(steps, start=1):
        taken = record(iteration, grad_norm=norm, applied=math.isfinite(norm), loss_scale=2.0**iteration)
        logging.on_loss(here, taken, Losses(loss, {"lm": loss}))
    logging.on_stop(here)
    first, alone = (line[3] for line in here.written)
    assert (first["train/loss"], first["train/grad_norm"]) == (5.0, 1.0)
    assert first["throughput/step_seconds"] == 1.0, "it took its time"
    assert first["train/loss_scale"] == 8.0, "in force at the last step"
    assert math.isnan(alone["train/loss"]), "there is no other"
    assert alone["train/grad_norm"] == math.inf


def test_a_stop_ends_an_interval() -> None:
    here, logging = session("cpu", log_interval=2), MetricLogging()
    for iteration in (1, 2, 3):
        logging.on_loss(here, record(iteration), Losses(float(iteration), {"lm": float(iteration)}))
    logging.on_stop(here)
    logging.on_stop(here)
    assert [(line[0], line[3]["train/loss"]) for line in here.written] == [(2, 1.5), (3, 3.0)]
    there = MetricLogging()
    there.on_stop(here)
    assert len(here.written) == 2, "a start that did no step has nothing to say"


@pytest.mark.slow("trains a tiny job twice in a rank of its own")
def test_intervals_of_a_real_training(ranks: Ranks, tmp_path: Path) -> None:
    """Those of a run that notes every step, averaged; the resumed run begins an interval where it begins."""
    sections: dict[str, Any] = {"batch": {"rampup_batch_size": [4, 4, 16]}, "schedule": {"train_iters": 11}}
    each = ranks.must_train(make_run(tmp_path, single := four_layer_job("each", **sections)), single)
    job = four_layer_job("some", **sections, tracking={"log_interval": 4})
    some = ranks.must_train(make_run(tmp_path, job), job)
    for key in ("train/loss", "train/grad_norm"):
        by_step = values(each, key)
        means = {last: math.fsum(by_step[step] for step in steps) / len(steps) for last, steps in COVERED.items()}
        assert values(some, key) == pytest.approx(means, rel=1e-12), key
    lr = values(each, "train/lr")
    assert values(some, "train/lr") == {last: lr[last] for last in COVERED}
    tokens = {metric.iteration: metric.tokens for metric in read_metrics(some)}
    steps, rates = values(some, "throughput/step_seconds"), values(some, "throughput/tokens_per_second")
    before = 0
    for last, covered in COVERED.items():
        assert rates[last] * steps[last] * len(covered) == pytest.approx(tokens[last] - before)
        before = tokens[last]


COVERED = {4: range(1, 5), 8: range(5, 9), 11: range(9, 12)}
