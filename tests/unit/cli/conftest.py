"""Commands as a person runs them: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import Commands, Said
from support.this_machine import gpus, libraries

__all__ = ["gpus", "libraries"]

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

    def __init__(self, said: Said) -> None:
        self.code = said.code
        self.out = said.out
        self.err = said.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Orchestrator = Callable[..., Finished]


@pytest.fixture
def orchestrator(tmp_path: Path, commands: Commands) -> Orchestrator:
    """Runs `orchestrator ARGUMENTS` in an empty folder, without a terminal."""

    def run(*arguments: str | Path, typed: str = "") -> Finished:
        finished = Finished(commands(*arguments, cwd=tmp_path, env={**os.environ, "COLUMNS": "100"}, typed=typed))
        assert "Traceback" not in finished.err, finished.err
        return finished

    return run


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job spec that is right."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path
