"""What the dashboard answers, asked without a browser and without the threads that look for runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from support.training import tiny_job

from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings, Shared
from orchestrator.launch.code import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.review.index import Behind
from orchestrator.tracking.metrics import MetricLog


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
    assert "Not up to date" not in asked.visitor.get("/").text
    asked.its.index.behind = Behind(1e9, "OSError: <b>Stale file handle")
    for address in ("/", asked.address, "/sweeps"):
        found = asked.visitor.get(address).text
        assert found.count("Not up to date since 2001-09-0") == 1
        assert "&lt;b&gt;Stale file handle" in found


def test_measurements_that_cannot_be_read_are_no_error_of_the_server(asked: Asked) -> None:
    key = f"{asked.run.name}/{asked.run.run_id}"
    addresses = (f"{asked.address}/figure/loss", f"/compare/figure/loss?run={key}", f"/compare?whole=true&run={key}")
    for address in addresses:
        assert asked.visitor.get(address).status_code == 200
    asked.run.metrics_file.unlink()
    asked.run.metrics_file.mkdir()
    assert asked.visitor.get(addresses[0]).status_code == 503
    assert asked.visitor.get(addresses[1]).json()["data"] == []
    assert asked.visitor.get(addresses[2]).status_code == 200
