"""What `make quickstart` does after installing: real text, training under TP=2 on the CPU, generation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow("it is the first thing that a person runs")
@pytest.mark.distributed
@pytest.mark.timeout(900)
def test_quickstart_learns_and_writes_and_does_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    # Shorter than as shipped: it learns as much as is asserted here.
    shorter = ["--set", "schedule.train_iters=120", "--set", "checkpoint.save_interval=100"]
    script = ["bash", str(ROOT / "scripts" / "quickstart.sh"), sys.executable, *shorter]

    first = subprocess.run(script, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr

    (run,) = (tmp_path / ".quickstart" / "runs" / "quickstart").iterdir()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [record["values"]["validation/loss"] for record in records if "validation/loss" in record["values"]]
    assert validation[0] - validation[-1] > 2
    resolved = json.loads((run / "resolved.json").read_text())
    assert resolved["parallelism"]["tensor_model_parallel_size"] == 2
    assert (run / "checkpoints").is_dir()
    written = first.stdout.partition("Let it write")[2].partition("Next:")[0]
    assert len(written.partition("import os")[2].split()) > 10

    again = subprocess.run(script, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == len(records)
