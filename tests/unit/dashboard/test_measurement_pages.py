"""What the dashboard answers, asked without a browser and without the threads that look for runs."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from support.clock import stop_at
from support.event_log import append_event, lines_of
from support.limits import set_limits
from support.refusals import before
from support.training import tiny_job

from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.pages import run_logs
from orchestrator.dashboard.settings import Settings, Shared
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.process import Process
from orchestrator.review.index import Staleness
from orchestrator.review.logs.log_search import SearchResults
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog

MEASURED = json.dumps({"time": 1e9, "iteration": 1, "host": "n", "values": {"cpu_utilization_percentage": 5.0}}) + "\n"


class Asked:
    """A dashboard of a folder with one run of ten steps."""

    def __init__(self, folder: Path) -> None:
        app = create_app(Settings(folder))
        self.its: Shared = app.state.shared
        self.visitor = TestClient(app)
        self.run = create_run(tiny_job("small"), "name: small\n", folder, CodeState({}, b""))
        self.address = f"/runs/{self.run.name}/{self.run.run_id}"
        self.measure(1, 10)
        self.its.index.look()

    def measure(self, first: int, last: int) -> None:
        log = MetricLog(self.run, check=lambda: None)
        for step in range(first, last + 1):
            log.append(step, 8 * step, 64 * step, {"train/loss": 1.0 / step}, measured=1000.0 + step)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path / "runs")


def test_pages_say_since_when_the_folder_could_not_be_read(asked: Asked) -> None:
    assert "Out of date" not in asked.visitor.get("/").text
    asked.its.index.behind = Staleness(1e9, "OSError: <b>Stale file handle")
    for address in ("/", asked.address, "/sweeps"):
        found = asked.visitor.get(address).text
        assert found.count("Out of date since 2001-09-0") == 1
        assert "&lt;b&gt;Stale file handle" in found


def test_parameters_are_those_of_the_model(asked: Asked) -> None:
    """Those of rank 0 are named so, and only where it holds a share."""
    append_event(asked.run, "started", launch_id="1", parameters=1_000_000, total_parameters=1_000_000)
    asked.its.index.look()
    assert facts(asked) == {"parameters": "1M"}
    append_event(asked.run, "started", launch_id="2", parameters=935_000, total_parameters=1_869_000)
    asked.its.index.look()
    assert facts(asked) == {"parameters": "1.87M", "parameters of rank 0": "935k"}


def facts(asked: Asked) -> dict[str, str]:
    """What the page of the run says of parameters."""
    text = asked.visitor.get(asked.address).text
    return dict(re.findall(r"<dt>(parameters[^<]*)</dt><dd>([^<]*)</dd>", text))


def test_measurements_that_cannot_be_read_are_no_error_of_the_server(asked: Asked) -> None:
    key = f"{asked.run.name}/{asked.run.run_id}"
    addresses = (f"{asked.address}/figure/loss", f"/compare/figure/loss?run={key}", f"/compare?whole=true&run={key}")
    for address in addresses:
        assert asked.visitor.get(address).status_code == 200
    asked.run.metrics_file.unlink()
    asked.run.metrics_file.mkdir()
    for address in (addresses[0], f"{asked.address}/changes?chart=loss&offset=1"):
        answer = asked.visitor.get(address)
        assert answer.status_code == 200
        assert answer.json().get("data", []) == []
        assert "Is a directory" in answer.json()["problem"]
    assert asked.visitor.get(addresses[1]).json()["data"] == []
    assert asked.visitor.get(addresses[2]).status_code == 200


def test_where_the_time_went_is_found_out_once_for_all_visitors(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[RunDir] = []
    before(monkeypatch, "orchestrator.review.series_cache.goodput_of", lambda run, now: read.append(run))
    for _ in range(3):
        assert asked.visitor.get(f"{asked.address}/time").status_code == 200
    assert len(read) == 1
    asked.measure(11, 12)
    asked.visitor.get(f"{asked.address}/time")
    assert len(read) == 2
    start = launched(asked.run)
    stop_at(monkeypatch, start + 31.0)
    for count in (1, 2, 3):
        asked.measure(12 + count, 12 + count)
        assert asked.visitor.get(f"{asked.address}/time").status_code == 200
    assert len(read) == 3, "of a run at work, twice in a minute"


def launched(run: RunDir) -> float:
    """A start of this very process, which is at work; when it was."""
    append_event(run, "launched", launch_id="a", **Process.current().to_record())
    return float(lines_of(run)[-1]["time"])


def test_machines_that_measured_nothing_new_are_not_drawn_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    before(
        monkeypatch, "orchestrator.dashboard.pages.machines.machine_figure", lambda run, chart: drawn.append(chart.name)
    )
    asked.run.system.mkdir()
    log = asked.run.system / "node-00000.jsonl"
    log.write_text(MEASURED)
    address = f"{asked.address}/machines/figure/cpu"
    first = asked.visitor.get(address)
    assert len(first.json()["data"]) == 1
    seen = {"If-None-Match": first.headers["ETag"]}
    assert asked.visitor.get(address, headers=seen).status_code == 304
    assert drawn == ["cpu"]
    log.write_text(MEASURED * 2)
    assert asked.visitor.get(address, headers=seen).status_code == 200


def test_searches_leave_the_threads_to_the_pages(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, to_answer_a_search=0.01)
    (asked.run.logs / "launcher.log").write_text("the word\n")
    begun, ended = threading.Barrier(3), threading.Event()

    def search(*asked_for: object) -> SearchResults:
        begun.wait(10)
        ended.wait(10)
        return SearchResults((), None)

    address = f"{asked.address}/logs?q=word"
    with monkeypatch.context() as slow, ThreadPoolExecutor(2) as others:
        slow.setattr(run_logs, "search", search)
        answers = [others.submit(asked.visitor.get, address) for _ in range(2)]
        begun.wait(10)
        assert "2 searches are already running" in asked.visitor.get(address).text
        ended.set()
        assert all(answer.result().status_code == 200 for answer in answers)
    found = asked.visitor.get(address).text
    assert "already running" not in found
    assert "the word" in found
