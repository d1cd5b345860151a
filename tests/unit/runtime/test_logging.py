"""Throughput: arithmetic on the model's FLOPs and the device's peak."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training import tiny_job

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.runtime.callbacks.logging import MetricLogging, throughput
from orchestrator.runtime.processes.control import Losses
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.state import StepRecord

H100 = "NVIDIA H100 80GB HBM3"


def session(name: str, world_size: int = 4, log_interval: int = 1) -> Any:
    job = tiny_job("job", precision={"dtype": "bf16"}, tracking={"mlflow": False, "log_interval": log_interval})
    written: list[Any] = []
    return SimpleNamespace(
        job=job,
        vocabulary=SimpleNamespace(padded_size=256),
        ranks=SimpleNamespace(world_size=world_size, is_first=True),
        device=Device("cpu", torch.device("cpu"), "gloo", name),
        schedule=SimpleNamespace(train_samples=40, train_iters=5),
        records=SimpleNamespace(metrics=lambda *record: written.append(record)),
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


def test_no_mfu_where_the_peak_is_unknown() -> None:
    assert "throughput/mfu" not in throughput(session("cpu"), samples=16, seconds=0.5)


def test_rates_are_over_the_steps_since_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    here, logging = session("cpu", log_interval=2), MetricLogging()
    for iteration, seconds in [(1, 1.0), (2, 3.0), (3, 0.5), (4, 0.5), (5, 2.0)]:
        record = StepRecord(
            iteration=iteration,
            consumed_samples=8 * iteration,
            consumed_tokens=8 * 64 * iteration,
            samples=8,
            learning_rate=1e-3,
            grad_norm=0.5,
            applied=True,
            skipped_steps=iteration - 1,
            skip_reason=None,
            seconds=seconds,
            loss_scale=None,
            ended=1e9 + iteration,
        )
        logging.on_loss(here, record, Losses(5.0 + iteration, {"lm": 5.0 + iteration}))
    # The last step is written whatever the interval.
    assert [record[:3] for record in here.written] == [(2, 16, 1024), (4, 32, 2048), (5, 40, 2560)]
    assert [record[4] for record in here.written] == [1e9 + 2, 1e9 + 4, 1e9 + 5], "when the steps ended"
    rates = [record[3]["throughput/tokens_per_second"] for record in here.written]
    assert rates == [1024 / 4.0, 1024 / 1.0, 512 / 2.0]
    assert [record[3]["train/loss"] for record in here.written] == [7.0, 9.0, 10.0]
    assert [record[3]["train/skipped_steps"] for record in here.written] == [1, 3, 4]
    assert capsys.readouterr().out.count("\n") == 3
