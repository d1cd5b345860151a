"""Stale processes: whoever was replaced writes nothing more."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Ranks, snapshot, wait_for_step, wait_until
from support.training import exit_record, layout, logs, losses, make_run, tiny_job

from orchestrator.checkpoints import committed, verify
from orchestrator.lease import Lease

Inject = Callable[[str], Path]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("starts of real ranks, and steps until one is replaced"),
]

MEASURED = {"mlflow": False, "system_metrics_seconds": 0.1}

SLOW_WRITER = """
import time
from orchestrator.runtime.checkpointing import Checkpointer
real = Checkpointer._start_writing
def start_writing(self, saving):
    if saving.state.iteration == 20:
        call = saving.request.async_fn
        saving.request = saving.request._replace(async_fn=lambda *a, **k: (time.sleep(3), call(*a, **k)))
    real(self, saving)
Checkpointer._start_writing = start_writing
"""


STALE = tiny_job(
    "stale",
    parallelism=layout(tp=2),
    batch={"micro_batch_size": 4},
    schedule={"train_iters": 40},
    checkpoint={"save_interval": 10},
    tracking=MEASURED,
)


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of STALE."""
    return ranks.losses_of(STALE, tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("busy", [False, True], ids=["between-saves", "while-saving"])
def test_stale_incarnation_writes_nothing(
    busy: bool, ranks: Ranks, undisturbed: dict[int, float], inject: Inject, tmp_path: Path
) -> None:
    """Processes that fall silent, are replaced, and wake up again."""
    job = STALE
    run = make_run(tmp_path, job)
    stale = ranks.start(run, job, launch_id="stale", inject=inject(SLOW_WRITER) if busy else None)
    if busy:
        wait_until(lambda: list(run.checkpoints.glob(".iter_0000020.*")), f"the save of step 20:\n{logs(run)}")
    else:
        wait_for_step(run, 12)
    stale.signal(signal.SIGSTOP)
    reached = max(losses(run))
    assert reached < 40
    try:
        assert ranks.start(run, job, launch_id="too-early").wait() == 1
        assert exit_record(run, "too-early")["cause"] == "held"
        long_ago = time.time() - 3600
        for path in run.lease.glob("*.json"):
            os.utime(path, (long_ago, long_ago))
        ranks.must_train(run, job, launch_id="new")
        before = snapshot(run)
    finally:
        stale.signal(signal.SIGCONT)
    assert stale.wait() == 1
    assert snapshot(run) == before
    assert exit_record(run, "stale")["cause"] == "lease_lost", logs(run)
    assert losses(run) == undisturbed
    assert [commit.iteration for commit in committed(run) if not verify(commit.path)] == [20, 30, 40]


def test_takeover_while_the_other_still_runs(ranks: Ranks, tmp_path: Path) -> None:
    """Whoever takes the lease stops the one that has it, within a step."""
    job = tiny_job("overtaken", tracking=MEASURED, schedule={"train_iters": 100_000})
    run = make_run(tmp_path, job)
    started = ranks.start(run, job)
    wait_for_step(run, 3, saved=False)
    wait_until(lambda: run.system_log(0).exists(), "a measurement of the node")
    for path in run.lease.glob("*.json"):
        os.utime(path, (1, 1))
    lease = Lease.acquire(run, launch_id="by-hand", time_to_live=1.0)
    time.sleep(0.1)
    before = snapshot(run)
    assert started.wait() == 1
    assert snapshot(run) == before
    assert exit_record(run)["cause"] == "lease_lost"
    lease.release()
