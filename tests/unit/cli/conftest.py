"""Commands as a person runs them: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

JOB = """\
name: small
model:
  preset: gpt-tiny
  vocab_size: 300
batch:
  micro_batch_size: 2
  num_micro_batches: 2
data:
  random_tokens: true
optimizer:
  lr: 1e-3
schedule:
  train_iters: 20
"""


class Finished:
    """What a command said and returned."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Orchestrator = Callable[..., Finished]


@pytest.fixture
def orchestrator(tmp_path: Path) -> Orchestrator:
    """Runs `python -m orchestrator ARGUMENTS` in an empty folder, without a terminal."""

    def run(*arguments: str | Path, typed: str | None = None) -> Finished:
        process = subprocess.run(
            [sys.executable, "-m", "orchestrator", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            input="" if typed is None else typed,
            capture_output=True,
            text=True,
            timeout=240,  # an end to what hangs, not a measure of speed: several tests may share the cores
        )
        finished = Finished(process)
        assert "Traceback" not in finished.err, finished.err
        return finished

    return run


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job spec that is right."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path
