"""Run directories as the launcher and the runtime leave them, and a look into an MLflow store without MLflow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event
from support.faults import Ranks, ranks_forked_in
from support.fixtures import inject, real_text
from support.ranks import free_port

from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog

__all__ = ["inject", "real_text"]

_PROGRAMS = Path(__file__).parents[2] / "support"

PATIENT = """
import functools
from orchestrator.runtime.callbacks import tracking
tracking._DRAIN_SECONDS = 240.0
tracking.start_follower = functools.partial(tracking.start_follower, drain_seconds=200.0)
"""
"""For `inject`: ranks that wait for their follower as long as it takes where everything is slow."""


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks from a process that has imported the trackers as well, which takes each sending two seconds, and MLflow's
    server.
    """
    trackers = (f"orchestrator.tracking.{module}" for module in ("mlflow.store", "event_files", "wandb_run"))
    # As MLflow is imported where it is a server: after uvicorn. What wandb.init imports takes it two seconds more.
    modules = (*trackers, "wandb.sdk.launch", "uvicorn", "mlflow.cli")
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), *modules) as made:
        yield made


def sending_is_forked(ranks: Ranks, *folders: Path) -> dict[str, str]:
    """Variables of what starts processes that send to trackers, so that these are forked. `folders`: more of
    PYTHONPATH.
    """
    return {**ranks.for_commands(*folders), "FORKED_TOO": "orchestrator.tracking"}


@pytest.fixture
def forked_sending(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sends to trackers is forked."""
    for name, value in sending_is_forked(ranks).items():
        monkeypatch.setenv(name, value)


SPEC: dict[str, Any] = {
    "name": "tiny",
    "model": {"num_layers": 2, "tied": True, "preset": None},
    "optimizer": {"lr": 0.001},
    "data": {"blend": [{"path": "a", "weight": 1.0}]},
    "launch": {"env": {"TOKEN": "${env:HUB_TOKEN}"}},
}


def write_spec(run: RunDir, spec: Mapping[str, Any]) -> None:
    run.next_resolved().write_text(json.dumps(spec))


def log_steps(run: RunDir, steps: range, loss: Callable[[int], float] = lambda step: 3 - step / 1000) -> None:
    log = MetricLog(run, lambda: None)
    for step in steps:
        log.append(step, step * 8, step * 1024, {"train/loss": loss(step)})


def make_run(runs_dir: Path, run_id: str = "0a1b2c3d", *, tracking: Mapping[str, Any] | None = None) -> RunDir:
    """A run that has just started: spec, script, code and two events."""
    run = RunDir(runs_dir / "tiny" / run_id)
    run.logs.mkdir(parents=True)
    write_spec(run, {**SPEC, "tracking": {"mlflow": True, "uri": None, "tags": {}, **(tracking or {})}})
    run.job_yaml.write_text("name: tiny\n")
    run.launch_script.write_text("torchrun …\n")
    repository = {"used_by": "working directory", "root": "/x", "commit": "c0ffee", "dirty": True}
    (run.path / "code.json").write_text(json.dumps({"version": "0.1", "repositories": [repository]}))
    (run.path / "code.diff").write_bytes(b"# /x\n+caf\xe9\n")
    append_event(run, "created", run_id=run_id)
    append_event(run, "launched", launch_id="l1", host="node7")
    append_event(run, "started", launch_id="l1", token=1, iteration=0)
    return run


@dataclass(frozen=True)
class Stored:
    """One MLflow run as a sqlite store holds it. Metrics: (step, value or None for NaN) by key, by step."""

    run_id: str
    experiment: str
    status: str
    name: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, list[tuple[int, float | None]]]
    artifacts: Path


def stored_runs(database: Path) -> list[Stored]:
    """Every run of a store, oldest first; none while its server is still making the tables."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        if not connection.execute("select 1 from sqlite_master where name = 'metrics'").fetchone():
            return []
        query = (
            "select run_uuid, e.name, status, r.name, artifact_uri from runs r join experiments e using (experiment_id)"
        )
        found = []
        for run_id, experiment, status, name, artifacts in connection.execute(f"{query} order by start_time"):
            pairs = {
                table: dict(connection.execute(f"select key, value from {table} where run_uuid = ?", [run_id]))
                for table in ("params", "tags")
            }
            metrics: dict[str, list[tuple[int, float | None]]] = {}
            rows = "select key, step, value, is_nan from metrics where run_uuid = ? order by step, timestamp"
            for key, step, value, is_nan in connection.execute(rows, [run_id]):
                metrics.setdefault(key, []).append((step, None if is_nan else value))
            path = Path(urllib.request.url2pathname(artifacts.removeprefix("file://")))
            found.append(Stored(run_id, experiment, status, name, pairs["params"], pairs["tags"], metrics, path))
        return found
    finally:
        connection.close()


def only_run(database: Path) -> Stored:
    [stored] = stored_runs(database)
    return stored


def losses(stored: Stored) -> list[tuple[int, float | None]]:
    return stored.metrics.get("train/loss", [])


def start_once(*runs: RunDir, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "orchestrator.tracking", *(str(run.path) for run in runs), "--once"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def once(*runs: RunDir, environment: Mapping[str, str] | None = None) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the JSON lines of one sending; nothing may be said beside them."""
    process = start_once(*runs, environment=environment)
    output, noise = process.communicate(timeout=240)
    assert noise == ""
    return process.returncode, [json.loads(line) for line in output.splitlines()]


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


class MlflowServer:
    """A real `mlflow server` on loopback that can be killed and started again over the same copy of a store.
    `environment`: of a process that `ranks` forks.
    """

    def __init__(
        self, folder: Path, store: Path, ranks: Ranks, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.port = free_port()
        self._options = options
        self._environment = {**ranks.for_commands(_PROGRAMS, folder), **(environment or {})}
        self.database = Path(shutil.copy(store, folder / "server.db"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow_server_program", "server"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.database}", "--workers", "1"]
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--artifacts-destination", str(self.folder / "artifacts"), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **self._environment},
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        wait_for(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            wait_for(lambda: not self._listens())  # what it stood for has ended, too

    def _listens(self) -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=10):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


@pytest.fixture
def mlflow_server(tmp_path: Path, empty_store: Path, ranks: Ranks) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path / "server", empty_store, ranks)
    yield server
    server.kill()


class SilentServer:
    """Accepts connections, reads and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (*self._connections, self._listener):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)


@pytest.fixture
def silent_server() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.close()
