"""Stale processes: whoever was replaced writes nothing more."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import Ranks, snapshot, wait_until
from support.held import HOLD, hold_at, let_go, wait_for_hold
from support.training import exit_record, layout, logs, losses, make_run, tiny_job

from orchestrator.run_directory.checkpoints.commit_markers import committed, verify
from orchestrator.run_directory.lease import Lease

Inject = Callable[[str], Path]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("starts of real ranks, and steps until one is replaced"),
]

MEASURED = {"mlflow": False, "system_metrics_seconds": 0.1}

SLOW_WRITER = """
import sys, time
from pathlib import Path
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
real = Checkpointer._start_writing
def start_writing(self, saving):
    if saving.state.iteration == 8:
        call = saving.request.async_fn
        def write(*arguments, **options):
            while not (Path(sys.argv[1]) / "go").exists():
                time.sleep(0.02)
            return call(*arguments, **options)
        saving.request = saving.request._replace(async_fn=write)
    real(self, saving)
Checkpointer._start_writing = start_writing
"""
# No check can be at one with the write after it: whoever is stopped for a test is not between the two.
QUIET = """
import sys, time
from pathlib import Path
from orchestrator.runtime.records.machine_use import MachineUse
measure_at_once = MachineUse.measure
def measure(self):
    run = Path(sys.argv[1])
    while list(run.glob("held-*")) and not (run / "go").exists():
        (run / "quiet").touch()
        time.sleep(0.02)
    return measure_at_once(self)
MachineUse.measure = measure
"""


STALE = tiny_job(
    "stale",
    parallelism=layout(tp=2),
    batch={"micro_batch_size": 8},
    schedule={"train_iters": 16},
    checkpoint={"save_interval": 4},
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
    # Between saves, or while the writers of step 8 wait as well.
    program, held = inject(HOLD + QUIET + SLOW_WRITER), hold_at(10 if busy else 6, since=0)
    stale = ranks.start(run, job, launch_id="stale", inject=program, env=held)
    wait_for_hold(run, 2)
    wait_until(lambda: (run.path / "quiet").exists(), f"the measurements to wait:\n{logs(run)}")
    assert bool(list(run.checkpoints.glob(".iter_0000008.*"))) == busy
    stale.signal(signal.SIGSTOP)
    try:
        assert ranks.start(run, job, launch_id="too-early").wait() == 1
        assert exit_record(run, "too-early")["cause"] == "held"
        long_ago = time.time() - 3600
        for path in run.lease.glob("*.json"):
            os.utime(path, (long_ago, long_ago))
        ranks.must_train(run, job, launch_id="new")
        before = snapshot(run)
    finally:
        let_go(run)
        stale.signal(signal.SIGCONT)
    assert stale.wait() == 1
    assert snapshot(run) == before
    assert exit_record(run, "stale")["cause"] == "lease_lost", logs(run)
    assert losses(run) == undisturbed
    assert [commit.iteration for commit in committed(run) if not verify(commit.path)] == [8, 12, 16]


NO_MORE_MEASUREMENTS = """
import sys
from pathlib import Path
from orchestrator.runtime.callbacks.system import SystemMetrics
watch = SystemMetrics._watch
def watch_and_tell(self, *arguments):
    watch(self, *arguments)
    (Path(sys.argv[1]) / "unmeasured").touch()
SystemMetrics._watch = watch_and_tell
"""


def test_takeover_while_the_other_still_runs(ranks: Ranks, inject: Inject, tmp_path: Path) -> None:
    """Whoever takes the lease stops the one that has it, within a step."""
    job = tiny_job("overtaken", tracking=MEASURED, schedule={"train_iters": 100_000})
    run = make_run(tmp_path, job)
    started = ranks.start(run, job, inject=inject(HOLD + NO_MORE_MEASUREMENTS), env=hold_at(5))
    wait_for_hold(run, 1)
    wait_until(lambda: run.system_log(0).exists(), "a measurement of the node")
    started.signal(signal.SIGSTOP)  # or it could give a sign of life in between
    for path in run.lease.glob("*.json"):
        os.utime(path, (1, 1))
    lease = Lease.acquire(run, launch_id="by-hand", time_to_live=1.0)
    started.signal(signal.SIGCONT)
    wait_until(lambda: (run.path / "unmeasured").exists(), "the last measurement of the node")
    before = snapshot(run)
    let_go(run)
    assert started.wait() == 1
    assert snapshot(run) == before
    assert exit_record(run)["cause"] == "lease_lost"
    lease.release()
