"""What MLflow is told of runs whose followers were ended with them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import lines_of
from support.faults import Ranks
from support.light_forks import ForkedProgram
from support.limits import set_limits

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from tests.unit.launch import conftest
from tests.unit.launch.conftest import fake_runtime, make_job, make_run, orchestrator, runs_dir, start_launcher, until
from tests.unit.tracking.conftest import only_run, sending_is_forked, stored_runs, wait_for

__all__ = ["fake_runtime", "make_job", "make_run", "orchestrator", "runs_dir", "start_launcher", "until"]


ENDLESS_STEP = {"FAKE_STEP_SECONDS": "600"}


@pytest.mark.parametrize("launcher_reacts", [True, False])
def test_a_run_that_is_ended_at_once_ends_in_mlflow_too(
    launcher_reacts: bool,
    make_job: Callable[..., JobSpec],
    make_run: Callable[[JobSpec], RunDir],
    start_launcher: Callable[..., ForkedProgram],
    until: Callable[..., None],
    orchestrator: Callable[..., tuple[int, str, str]],
    empty_store: Path,
    ranks: Ranks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in sending_is_forked(ranks, Path(conftest.__file__).parent).items():
        monkeypatch.setenv(name, value)
    set_limits(monkeypatch, for_the_launcher_to_stop=120.0 if launcher_reacts else 0.5)
    run = make_run(make_job(launch__env=ENDLESS_STEP, tracking={"mlflow": True}))
    store = run.path.parent.parent / "mlflow.db"
    store.write_bytes(empty_store.read_bytes())
    launcher = start_launcher(run)
    until(lambda: any(event["event"] == "started" for event in lines_of(run)))
    if not launcher_reacts:
        launcher.send_signal(signal.SIGSTOP)
    assert orchestrator("cancel", "tiny", "--now")[0] == 0
    wait_for(lambda: bool(stored_runs(store)) and only_run(store).status == "KILLED")
    assert only_run(store).tags["orchestrator.exit_cause"] == "cancelled"
