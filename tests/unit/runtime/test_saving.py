"""When checkpoints are written and which of them stay."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Ranks
from support.training import events, layout, losses, make_run, tiny_job

from orchestrator.run_directory.checkpoints.commit_markers import committed

pytestmark = pytest.mark.slow("each test trains a tiny job in its own processes")


SLOW_STEPS = """
import time
import orchestrator.runtime.loop as loop
real = loop.train_step
def train_step(session):
    time.sleep(0.15)
    return real(session)
loop.train_step = train_step
"""


def test_by_the_clock(ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path) -> None:
    """Two ranks agree on when, though only one looks at the clock."""
    job = tiny_job(
        "clock",
        parallelism=layout(dp=2),
        batch={"micro_batch_size": 4},
        schedule={"train_iters": 12},
        checkpoint={"save_seconds": 1, "keep_last": 100},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(SLOW_STEPS))
    saved = [event["iteration"] for event in events(run, "checkpoint_saved")]
    assert saved[-1] == 12
    [started], [finished] = events(run, "started"), events(run, "finished")
    assert 2 <= len(saved) <= finished["time"] - started["time"] + 2, "once in a second, and at the end"
    assert saved == [commit.iteration for commit in committed(run)]
    assert list(losses(run)) == list(range(1, 13))


def test_what_is_kept(ranks: Ranks, tmp_path: Path) -> None:
    batch = {"micro_batch_size": 8}
    keep = {"save_interval": 3, "keep_last": 2, "keep_every": 6}
    job = tiny_job("kept", batch=batch, schedule={"train_iters": 20}, checkpoint=keep)
    run = make_run(tmp_path, job)
    for iteration in (5, 12, 13, 19, 40):
        (run.checkpoint(iteration) / "unfinished").mkdir(parents=True)
    ranks.must_train(run, job)
    assert [event["iteration"] for event in events(run, "checkpoint_saved")] == [3, 6, 9, 12, 15, 18, 20]
    assert [commit.iteration for commit in committed(run)] == [6, 12, 18, 20]
    assert [iteration for iteration, _ in run.checkpoint_dirs()] == [6, 12, 18, 19, 20, 40]
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["torch"] == importlib.metadata.version("torch")
    assert environment["megatron-core"] == importlib.metadata.version("megatron-core")
    assert environment["python"] == platform.python_version()
    assert "destroy_process_group" not in run.rank_log(0).read_text()
