"""What ranks agree on, between two real processes; and how a stop is asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.processes.stop_request import request_stop
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.processes.stop_request import StopRequest


@pytest.mark.slow("two ranks are started")
def test_no_rank_waits_for_a_lease_that_cannot_be_taken(run_ranks: Any) -> None:
    first, second = run_ranks("refused-leases", 2)
    assert first == second
    assert [each.partition(":")[0] for each in first] == ["UserError", "IsADirectoryError"]


@pytest.mark.slow("two ranks are started")
def test_two_ranks_agree(run_ranks: Any) -> None:
    first, second = run_ranks("control", 2)
    assert first["nothing offered"] is None
    assert first["agreed"] == second["agreed"] == [7, True, [[12.0, 4.0], [5.0, 2.0]], 2, True]
    assert first["auxiliary"] == second["auxiliary"] == [[3.0, 4.0]]
    assert first["taken once"] is None
    assert first["quiet"] == second["quiet"] == [8, False, [[0.0, 0.0], [0.0, 0.0]], 0, False]
    assert first["any"] == second["any"] == [True, False]
    assert first["met"] == [False, True], "the other one came too late"
    assert second["met"] == [True, True]
    assert first["from first"] == second["from first"] == {"rank": 0}
    assert first["gathered"] == [0, 10]
    assert second["gathered"] is None
    assert first["unequal parts"] == [True, [0.0, 0.0, 1.0], [0.0]], "gloo refuses them, or the shim's is not needed"
    assert second["unequal parts"] == [True, [0.0, 0.0, 1.0], [0.0, 2.0]]


@pytest.fixture
def signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_restored")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_noted(tmp_path: Path, number: signal.Signals) -> None:
    request = StopRequest(RunDir(tmp_path), watches_file=False)
    request.catch_signals()
    assert not request.is_set()
    os.kill(os.getpid(), number)
    assert request.is_set()
    assert request.by == number.name


def test_the_stop_file_is_seen_by_the_rank_that_watches_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    watching, other = StopRequest(run, watches_file=True), StopRequest(run, watches_file=False)
    assert not watching.is_set()
    request_stop(run, "orchestrator cancel")
    assert watching.is_set()
    assert watching.by == "orchestrator cancel"
    assert not other.is_set()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"by": null}', b"\xff\x00".decode(errors="surrogateescape")])
def test_a_stop_file_of_a_persons_own_need_not_say_anything(content: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.stop_file.write_text(content, errors="surrogateescape")
    request = StopRequest(run, watches_file=True)
    assert request.is_set()
    assert request.by == "stop file"
