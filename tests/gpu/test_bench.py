"""`orchestrator bench` on a GPU: the kernels of a real step are known, and its parts are the whole of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.measured import needs_gpus
from support.shipped import SHIPPED

from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

ROOT = Path(__file__).parents[2]
JOB = SHIPPED["gpt-1.7b"]
ONE_MICRO_BATCH = "batch.global_batch_size=4"
KNOWN = 0.95


WAYS = {
    "torch": ["runtime.layers=torch"],
    "transformer_engine": ["runtime.layers=transformer_engine"],
    "captured": ["runtime.layers=transformer_engine", "runtime.cuda_graphs=true"],
}


def overrides(way: str) -> list[str]:
    return [ONE_MICRO_BATCH, *WAYS[way]]


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file."""
    return [load_job([JOB], overrides(way)).job for way in WAYS]


@pytest.mark.parametrize("way", WAYS)
def test_the_step_of_the_1_7b_by_part(way: str, tmp_path: Path) -> None:
    needs_gpus(1, load_job([JOB], overrides(way)).job.runtime.layers)
    changes = [f"--set={each}" for each in overrides(way)]
    trace, page = tmp_path / "step.json", tmp_path / "page.md"
    files = ["--trace", str(trace), "-o", str(page), "--runs-dir", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "orchestrator", "bench", str(JOB), *changes, "--steps", "10", *files, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr or done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    [rank] = found["ranks"]
    profile, step = rank["profile"], found["step"]["seconds"]
    shown = ", ".join(f"{part} {seconds * 1e3:.1f}" for part, seconds in profile["parts"].items())
    print(f"\nRESULT {way}: {step * 1e3:.1f} ms, MFU {found['mfu']:.1%}; {shown}, idle {profile['idle'] * 1e3:.1f}")
    print(f"unknown: {profile['unclassified']}\nlargest: {profile['largest']}")
    assert profile["classified"] >= KNOWN
    assert sum(profile["parts"].values()) + profile["idle"] == pytest.approx(profile["seconds"], rel=1e-6)
    assert profile["seconds"] == pytest.approx(step, rel=0.1), "the profiled step is one like the timed ones"
    for part in ("gemm", "attention", "memory_bound", "loss", "optimizer"):
        predicted = next(row["predicted_seconds"] for row in found["parts"] if row["part"] == part)
        assert predicted / 2 < profile["parts"][part] < 2 * predicted, part
    assert 0.3 < found["mfu"] < 0.8
    [memory] = found["memory"]
    assert memory["peak_bytes"] == pytest.approx(memory["predicted_peak_bytes"], rel=0.05)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"kernel", "cpu_op"} <= {event.get("cat") for event in events}
    assert "MFU" in page.read_text()
