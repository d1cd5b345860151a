"""Events and metrics while the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.event_log import lines_of
from support.refusals import fill_the_disk

from orchestrator.run_directory.events.types import Finished, StepSkipped
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.runtime.records.records import Records


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def records(run: RunDir) -> Records:
    return Records(run, Lease.acquire(run, launch_id="test"))


def test_what_waited_keeps_its_time_and_order(run: RunDir, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fill_the_disk(patch, errno.EDQUOT)
        for number in (1, 2):
            records.metrics(number, 8 * number, 64, {"train/loss": 1.0}, measured=100.0 * number - 1)
            records.event(StepSkipped(iteration=number, reason=None, time=100.0 * number))
        assert not list(read_lines(run.metrics_file))
    records.close()
    assert [(line["iteration"], line["time"]) for line in read_lines(run.metrics_file)] == [(1, 99.0), (2, 199.0)]
    assert [(event["iteration"], event["time"]) for event in lines_of(run)] == [(1, 100.0), (2, 200.0)]


def test_what_is_lost_at_the_end_is_counted(
    records: Records, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_the_disk(monkeypatch, errno.EDQUOT)
    records.metrics(1, 8, 64, {"train/loss": 1.0}, measured=100.0)
    records.event(Finished(iteration=1))
    records.close()
    assert "2 events and measurements are lost" in capsys.readouterr().err
