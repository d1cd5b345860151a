"""A sweep on this machine is cancelled while one of its cells starts, at the worst moments."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from support.event_log import append_event, append_to_ledger
from support.refusals import before
from support.refused import refused

from orchestrator.cli.runs.starts.interrupts import Interrupts
from orchestrator.cli.runs.sweeps.start import cancel_cells
from orchestrator.errors import JobError
from orchestrator.process import Process
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.executor import CellTask
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.request import Task
from tests.unit.sweeps.conftest import wait_until

CELL = "0" * 64
HERE = Process.current().to_record()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tiny" / CELL[:8])
    run.path.mkdir(parents=True)
    return run


@pytest.fixture
def sweep(tmp_path: Path, run: RunDir) -> SweepDir:
    """A sweep of one cell, which a driver that lives has and has not started."""
    sweep = sweep_dir("rates", tmp_path)
    sweep.path.mkdir(parents=True)
    cell = {"id": CELL, "name": "lr=1", "values": {"optimizer.lr": "1"}, "run": f"tiny/{CELL[:8]}"}
    append_to_ledger(sweep, "planned", generation=1, metric="train/loss", goal="min", cells=[cell])
    append_to_ledger(sweep, "submitted", how="local", cluster=None, max_parallel=1, jobs={CELL: "local"}, driver=HERE)
    return sweep


def task(sweep: SweepDir, run: RunDir, *command: str) -> CellTask:
    return CellTask(str(sweep.path), Task(CELL, "lr=1", str(run.path), list(command)))


def test_a_cell_that_is_cancelled_before_it_says_that_it_was_launched_is_ended(
    sweep: SweepDir, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "1")
    begun = tmp_path / "begun"

    def cancel() -> None:
        wait_until(begun.exists)
        assert [status.state for status in cancel_cells(sweep, now=False)[0]] == ["pending"]

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with refused("cell_failed", 143, kind=JobError):
        task(sweep, run, "sh", "-c", f"touch {begun}; exec sleep 600")()
    canceller.join()
    assert not run.stop_file.exists()


def test_a_cell_that_was_cancelled_is_not_started(
    sweep: SweepDir, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "1")
    cancel_cells(sweep, now=False)
    task(sweep, run, "touch", str(tmp_path / "begun"))()
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("now", [False, True])
def test_a_cell_that_is_launched_while_it_is_cancelled_is_asked_to_stop(
    sweep: SweepDir, run: RunDir, now: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched_meanwhile(*event: object) -> None:
        append_event(run, "launched", launch_id="a", **HERE)

    before(monkeypatch, "orchestrator.sweeps.ledger.SweepDir.append", launched_meanwhile)
    pending, running = cancel_cells(sweep, now=now)
    assert (len(pending), len(running)) == (0, 1)
    assert run.stop_file.exists()


def test_a_ctrl_c_waits_until_it_is_let_through_and_a_second_one_does_not() -> None:
    heard: list[str] = []
    with Interrupts(lambda: heard.append("")) as interrupts:
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.let_through()
        interrupts.let_through()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupts.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(heard) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_ctrl_c_that_is_ignored_stays_so() -> None:
    """As for a command that a shell's script has started with `&`: what another one is told is not for it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts(lambda: pytest.fail("it is not for this command")) as interrupts:
            interrupts.hold()
            signal.raise_signal(signal.SIGINT)
            interrupts.let_through()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
