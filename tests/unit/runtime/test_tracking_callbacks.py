"""What sends and measures beside a training ends none, whatever the machine refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.rundir import RunDir
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
