"""What sends and measures beside a training ends none, whatever the machine refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator.rundir import RunDir
from orchestrator.runtime.callbacks.system import SystemMetrics
from orchestrator.runtime.callbacks.tracking import Tracking
from orchestrator.spec.tracking import TrackingSpec


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A training whose folder of logs cannot be made."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.logs.write_text("in the way")
    return SimpleNamespace(
        run=run,
        ranks=SimpleNamespace(is_first=True),
        device=SimpleNamespace(is_cuda=False),
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
    def refuse(**options: object) -> None:
        raise RuntimeError("couldn't find /proc/net/dev")

    monkeypatch.setattr(psutil, "net_io_counters", refuse)
    measuring = SystemMetrics()
    measuring.on_start(session)
    measuring.on_end(session)
    assert capfd.readouterr() == ("system metrics end here: RuntimeError: couldn't find /proc/net/dev\n", "")
