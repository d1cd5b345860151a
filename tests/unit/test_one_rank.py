"""A rank that is alone computes what it would among others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import tiny_job

from orchestrator.spec.loading import dump_resolved

TESTS = Path(__file__).parents[1]


def measure(ranks: Ranks, file: Path, rank: int, *changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.one_rank", str(file), str(rank), *changes],
        env={**os.environ, **ranks.for_commands(TESTS), "FORKED_TOO": "benchmarks.one_rank"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_says_why_a_rank_failed(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(dump_resolved(tiny_job("alone", runtime={"device": "cpu"})))
    found = measure(ranks, file, 0, "runtime.train_step=no_such_module:Step")
    assert found.returncode != 0
    assert "there is no module no_such_module" in found.stderr


@pytest.mark.parametrize("rank", [0, 3], ids=["first-stage", "last-stage"])
def test_a_rank_of_four_is_measured_by_itself(ranks: Ranks, rank: int, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    degrees = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True}
    job = tiny_job("alone", parallelism=degrees, launch={"gpus_per_node": 4}, runtime={"device": "cpu"})
    file.write_text(dump_resolved(job))
    found = measure(ranks, file, rank)
    assert found.returncode == 0, found.stderr[-2000:]
    said = json.loads(found.stdout)
    assert said["rank"] == rank
    assert said["milliseconds"] > 0
    assert said["skipped_updates"] == 0
    assert {"gemm", "attention"} <= set(said["planned"])
    assert not {"tensor_parallel", "bubble", "pipeline_transfer"} & set(said["planned"])
    assert ("loss" in said["parts"]) == (rank == 3)  # the last stage alone has one
