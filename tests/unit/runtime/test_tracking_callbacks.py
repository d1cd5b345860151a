"""What sends and measures beside a training ends none, whatever the machine refuses."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.refusals import refuse

from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.callbacks.system import SystemMetrics
from orchestrator.runtime.callbacks.tracking import Tracking
from orchestrator.runtime.loop import train
from orchestrator.runtime.session import Session
from orchestrator.spec.sections.tracking import TrackingSpec


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A training whose folder of logs cannot be made."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.logs.write_text("in the way")
    return SimpleNamespace(
        launch=SimpleNamespace(run=run, lease=SimpleNamespace(check=lambda: None)),
        processes=SimpleNamespace(ranks=SimpleNamespace(is_first=True), device=SimpleNamespace(is_cuda=False)),
        state=SimpleNamespace(iteration=3),
        agreed=SimpleNamespace(postponed=False),
        job=SimpleNamespace(tracking=TrackingSpec(system_metrics_seconds=0.1)),
    )


def test_a_follower_that_cannot_be_started(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tracking = Tracking()
    tracking.on_start(session)
    tracking.on_end(session)
    said = capsys.readouterr().out
    assert said.startswith("no metrics are sent during this start: [Errno 17] File exists")
    assert said.count("\n") == 1


def test_a_machine_that_cannot_be_measured(
    session: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "psutil.net_io_counters", RuntimeError("couldn't find /proc/net/dev"))
    measuring = SystemMetrics()
    measuring.on_start(session)
    measuring.on_end(session)
    assert capfd.readouterr() == ("system metrics stop here: RuntimeError: couldn't find /proc/net/dev\n", "")


class _Broken(Callback):
    def on_start(self, session: Session) -> None:
        raise RuntimeError("no data")


def test_a_training_that_fails_is_measured_no_more(session: Any) -> None:
    with pytest.raises(RuntimeError, match="no data"):
        train(session, [SystemMetrics(), _Broken()])
    assert "system-metrics" not in [thread.name for thread in threading.enumerate()]
    assert [line["iteration"] for line in read_lines(session.launch.run.system_log(0))] == [3]
