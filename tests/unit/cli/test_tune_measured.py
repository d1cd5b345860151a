"""`orchestrator tune --measure`, on processes of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import QUICK_TORCHRUN, Ranks
from support.programs import run_instead

from orchestrator.cli.main import main
from orchestrator.run_directory.rundir import read_lines

Orchestrator = Callable[..., Any]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="training needs torch")

TINY = """\
name: tiny
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 64, vocab_size: 300}
batch: {micro_batch_size: 2, global_batch_size: 4}
data: {random_tokens: true}
optimizer: {lr: 1.0e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
launch: {gpus_per_node: 2}
runtime: {device: cpu}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@needs_torch
@pytest.mark.distributed
@pytest.mark.slow(reason="trains two layouts with two processes each, to see that what is measured is real")
def test_the_best_are_measured_here_and_known_afterwards(
    orchestrator: Orchestrator, ranks: Ranks, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ranks.for_commands().items():
        monkeypatch.setenv(name, value)
    fixed = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "use_distributed_optimizer",
        "recompute_method",
    )
    words = (*(word for key in fixed for word in ("--keep", key)), "--measure", "--best", "2", "--steps", "3")
    said = orchestrator("tune", tiny, *words)
    assert said.code == 0, said.err
    assert "running: TP 1, PP 1, micro 2, recompute none\n" in said.out
    for column in ("predicted s", "corrected s", "measured s"):
        assert column in said.out
    records = list(read_lines(tmp_path / "runs" / "tiny-tune" / "measured.jsonl"))
    assert len(records) == 2, "micro-batches of 1 and of 2"
    assert all(record["outcome"] == "measured" and record["step_seconds"] > 0 for record in records)
    assert "s per step measured" in (tmp_path / "tiny.tuned.yaml").read_text()
    assert [path.name for path in (tmp_path / "runs" / "tiny-tune").iterdir()] == ["measured.jsonl"]
    again = orchestrator("tune", tiny, *words, "--json").json
    assert len(list(read_lines(tmp_path / "runs" / "tiny-tune" / "measured.jsonl"))) == len(records)
    assert again["best"]["measured"]
    assert again["best"]["step_seconds"] == min(record["step_seconds"] for record in records)
    assert len(again["trials"]) == len(records)


@needs_torch
@pytest.mark.distributed
def test_an_interrupt_keeps_what_is_known(ranks: Ranks, tiny: Path, tmp_path: Path) -> None:
    endless = ("--measure", "--best", "1", "--steps", "20000")
    command = [sys.executable, "-m", "orchestrator", "tune", "tiny.yaml", *endless]
    env = {**os.environ, **ranks.for_commands()}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not _is_launched(tmp_path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped; what was measured is kept" in err
    assert "Traceback" not in err
    assert "The fastest of" in out
    assert not list(tmp_path.glob("runs/tiny-tune/*"))


def _is_launched(folder: Path) -> bool:
    return any('"launched"' in events.read_text() for events in folder.glob("runs/tiny-tune/*/events.jsonl"))


def test_nothing_that_was_tried_can_be_run(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1] / 'launch'}:{QUICK_TORCHRUN}")
    monkeypatch.setenv("FAKE_END", "nan@2")
    run_instead(monkeypatch, "fake_runtime", "layouts")
    assert main(["tune", str(tiny), "--measure", "--best", "1"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: none of the tried layouts could run:\n      TP 1, PP 1, micro 2")
    assert len(said.err.splitlines()) == 3, "one was tried, and another one after that"
    assert not (tmp_path / "tiny.tuned.yaml").exists()


def test_speeds_on_the_cpu_are_those_of_a_process(orchestrator: Orchestrator, tiny: Path, tmp_path: Path) -> None:
    said = orchestrator("tune", tiny)
    assert "tokens/s/process" in said.out
    assert "tokens/s/GPU" not in said.out
    overlay = (tmp_path / "tiny.tuned.yaml").read_text()
    assert " tokens/s per process, " in overlay
    best = json.loads(orchestrator("tune", tiny, "--json").out)["best"]
    assert best["device_bytes"] == best["peak_bytes"], "the CPU has no CUDA and no NCCL"
    assert "per GPU" not in overlay
