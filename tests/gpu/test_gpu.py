"""On real GPUs: runs resume in bf16, the layer backends agree, and the 1.7B job reaches its MFU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks, wait_until
from support.shipped import SHIPPED
from support.training import events, four_layer_job, largest_difference, layout, losses, make_run, must_train, values

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

SMALL = {"hidden_size": 512, "num_attention_heads": 8, "seq_length": 256, "vocab_size": 1000}
BF16 = {"dtype": "bf16"}
LAYERS = ("torch", "transformer_engine")
TP2 = layout(tp=2, sequence_parallel=True)


def gpus(count: int) -> None:
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs, this machine has {torch.cuda.device_count()}")


def small_job(name: str, **sections: Any) -> Any:
    return four_layer_job(name, **{"model": SMALL, "precision": BF16, **sections})


def dropping_job(name: str, layers: str) -> JobSpec:
    return small_job(
        name,
        model={**SMALL, "hidden_dropout": 0.1, "attention_dropout": 0.1},
        runtime={"deterministic": True, "layers": layers},
        schedule={"train_iters": 60},
        checkpoint={"save_interval": 20},
    )


def moving_job(parallelism: dict[str, Any] | None = None) -> JobSpec:
    return small_job(
        "job", checkpoint={"save_interval": 10}, schedule={"train_iters": 60}, parallelism=parallelism or {}
    )


def fp16_job() -> JobSpec:
    return small_job("fp16", precision={"dtype": "fp16", "initial_loss_scale": 2.0**32}, schedule={"train_iters": 60})


def large_job() -> JobSpec:
    changes = ["schedule.train_iters=5", "tracking.mlflow=false"]
    return load_job([SHIPPED["gpt-1.7b"]], changes).job


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    dropping = [dropping_job("whole", layers) for layers in LAYERS]
    return [*dropping, moving_job(), moving_job(TP2), fp16_job(), large_job()]


@pytest.fixture(scope="module", params=LAYERS)
def layers(request: pytest.FixtureRequest) -> str:
    if request.param == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def reference(ranks: Ranks, layers: str, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = small_job("one", runtime={"layers": layers})
    return ranks.must_train(make_run(tmp_path_factory.mktemp("reference"), job), job)


def test_resume_is_bitwise_with_dropout(layers: str, ranks: Ranks, tmp_path: Path) -> None:
    whole, job = (dropping_job(name, layers) for name in ("whole", "cut"))
    expected = losses(ranks.must_train(make_run(tmp_path, whole), whole))
    run = make_run(tmp_path, job)
    resumed = ranks.killed_and_resumed(run, job)
    print(f"\nRESULT resume {layers} from {resumed}: {losses(run) == expected}")
    assert losses(run) == expected


def test_resume_at_another_layout(ranks: Ranks, tmp_path: Path) -> None:
    gpus(2)
    first, second = moving_job(), moving_job(TP2)
    whole = ranks.losses_of(first, tmp_path / "whole")
    run = make_run(tmp_path / "moved", first)
    started = ranks.start(run, first)
    wait_until(lambda: events(run, "checkpoint_saved") or started.poll() is not None, "a checkpoint")
    started.signal(signal.SIGTERM)
    started.wait()
    ranks.must_train(make_run(tmp_path / "moved", second), second)
    [resumed] = events(run, "resumed")
    difference = largest_difference(whole, losses(run))
    print(f"\nRESULT resume at another layout from {resumed['iteration']}: {difference:.2e}")
    assert difference < 2e-3


def test_layer_backends_agree(layers: str, reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    if layers == "torch":
        pytest.skip("torch is what Transformer Engine is compared with")
    job = small_job("other", runtime={"layers": "torch"})
    run = ranks.must_train(make_run(tmp_path, job), job)
    difference = largest_difference(losses(reference), losses(run))
    print(f"\nRESULT torch against Transformer Engine {difference:.2e}")
    assert difference < 2e-3


def test_fp16_scales_its_loss(reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    """A scale that is far too large overflows, is halved until it fits, and training goes on from there."""
    job = fp16_job()
    run = ranks.must_train(make_run(tmp_path, job), job)
    scales, skipped = values(run, "train/loss_scale"), values(run, "train/skipped_steps")
    assert scales[60] < 2.0**32
    assert 0 < skipped[60] < 50
    assert skipped[60] == skipped[55], "the scale has settled"
    assert abs(losses(run)[1] - losses(reference)[1]) < 0.02, "the first loss is before any update"


def test_1_7b_reaches_48_percent(tmp_path: Path) -> None:
    job = large_job()
    run = must_train(make_run(tmp_path, job), job, timeout=560)
    mfu = sorted(list(values(run, "throughput/mfu").values())[2:])
    [started] = events(run, "started")
    seconds = statistics.median(list(values(run, "throughput/step_seconds").values())[2:])
    memory = max(values(run, "memory/peak_bytes").values()) / 2**30
    [saved] = events(run, "checkpoint_saved")
    print(
        f"\nRESULT gpt-1.7b megatron-core {importlib.metadata.version('megatron-core')} {started['layers']} "
        f"micro {job.batch.micro_batch_size} global {job.global_batch_size}: "
        f"MFU median {statistics.median(mfu):.4f} range {mfu[0]:.4f}..{mfu[-1]:.4f}, "
        f"{seconds * 1000:.0f} ms per step, {memory:.1f} GiB, "
        f"checkpoint {saved['bytes'] / 1e9:.1f} GB in {saved['seconds']} s"
    )
    assert statistics.median(mfu) >= 0.48
