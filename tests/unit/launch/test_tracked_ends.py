"""What MLflow is told of runs whose followers were ended with them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.runs import cancel
from orchestrator.rundir import RunDir
from orchestrator.spec.job import JobSpec
from tests.unit.tracking.conftest import empty_store, only_run, store_in, stored_runs, wait_for

__all__ = ["empty_store", "store_in"]

ENDLESS_STEP = {"FAKE_STEP_SECONDS": "600"}


@pytest.mark.parametrize("launcher_reacts", [True, False])
def test_a_run_that_is_ended_at_once_ends_in_mlflow_too(
    launcher_reacts: bool,
    make_job: Callable[..., JobSpec],
    make_run: Callable[[JobSpec], RunDir],
    start_launcher: Callable[..., subprocess.Popen[str]],
    until: Callable[..., None],
    orchestrator: Callable[..., tuple[int, str, str]],
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancel, "_SECONDS_FOR_THE_LAUNCHER", 120.0 if launcher_reacts else 0.5)
    run = make_run(make_job(launch__env=ENDLESS_STEP, tracking={"mlflow": True}))
    store = run.path.parent.parent / "mlflow.db"
    store.write_bytes(empty_store.read_bytes())
    launcher = start_launcher(run)
    until(lambda: any(event["event"] == "started" for event in run.events()))
    if not launcher_reacts:
        launcher.send_signal(signal.SIGSTOP)
    assert orchestrator("cancel", "tiny", "--now")[0] == 0
    wait_for(lambda: bool(stored_runs(store)) and only_run(store).status == "KILLED")
    assert only_run(store).tags["orchestrator.exit_cause"] == "cancelled"
