"""The follower beside a run: it sends while the run goes on, and its end is bounded whatever the server does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.event_log import append_event
from support.limits import set_limits

from orchestrator.process import Process
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking import follower_loop
from orchestrator.tracking.description import Ending
from orchestrator.tracking.follower import finish_follower, start_follower
from orchestrator.tracking.measurements.metrics import MetricLog
from orchestrator.tracking.trackers import LONGEST_WAIT_SECONDS
from tests.unit.tracking.conftest import (
    MlflowServer,
    SilentServer,
    log_steps,
    losses,
    make_run,
    only_run,
    stored_runs,
    wait_for,
)

SECRET = "s3cr3t-pa55word"


def follower_log(run: RunDir) -> str:
    path = run.logs / "mlflow.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.usefixtures("forked_sending")
def test_a_run_is_sent_as_it_goes_on_and_ends_as_it_ends(tmp_path: Path, store_in: Path) -> None:
    run = make_run(tmp_path)
    lease = Lease.acquire(run, launch_id="l1")
    (run.path / "environment.json").write_text('{"python": "3.11.4"}')
    follower = start_follower(run, drain_seconds=200)
    assert os.getpriority(os.PRIO_PROCESS, follower.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
    log_steps(run, range(1, 4))
    wait_for(lambda: any(losses(each) for each in stored_runs(store_in)))
    assert only_run(store_in).status == "RUNNING"
    assert only_run(store_in).params["environment.python"] == "3.11.4"
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a whole job; the ranks still save and measure
        os.kill(follower.pid, number)
    log_steps(run, range(4, 7))
    assert finish_follower(follower, 240, cause="completed")
    stored = only_run(store_in)
    assert (stored.status, len(losses(stored))) == ("FINISHED", 6)
    assert follower_log(run) == ""
    lease.release()
    assert finish_follower(follower)  # a second call finds it ended


def test_the_follower_of_a_killed_process_sends_the_rest_and_ends(tmp_path: Path, store_in: Path) -> None:
    run = make_run(tmp_path)
    log_steps(run, range(1, 4))
    # A forked child keeps the follower's pipe open after its parent was killed, as a data loader's worker does.
    program = (
        "import os, sys, time; from pathlib import Path; from orchestrator.run_directory.rundir import RunDir; "
        "from orchestrator.run_directory.lease import Lease; "
        "from orchestrator.tracking.follower import start_follower; "
        "run = RunDir(Path(sys.argv[1])); Lease.acquire(run, launch_id='l1'); "
        "print(start_follower(run, drain_seconds=600).pid, flush=True); "
        "child = os.fork() or time.sleep(600); print(child, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        follower, child = (int(parent.stdout.readline()) for _ in range(2))
        try:
            wait_for(lambda: any(losses(each) for each in stored_runs(store_in)))
            log_steps(run, range(4, 7))
            parent.kill()
            parent.wait()
            wait_for(lambda: only_run(store_in).status == "KILLED")
            assert only_run(store_in).tags["orchestrator.exit_cause"] == "lost"
            # A little later the launcher knows better.
            append_event(run, "exited", launch_id="l1", code=1, cause="host_out_of_memory", message="no room")
            wait_for(lambda: is_gone(follower))
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)
    stored = only_run(store_in)
    assert (stored.status, len(losses(stored))) == ("FAILED", 6)
    assert stored.tags["orchestrator.exit_cause"] == "host_out_of_memory"
    assert stored.tags["orchestrator.exit_message"] == "no room"


def is_gone(pid: int) -> bool:
    return Process.from_record({**Process.current().to_record(), "pid": pid, "started": None}).is_dead


@pytest.mark.slow(reason="starts a real MLflow server twice")
@pytest.mark.usefixtures("forked_sending")
def test_a_server_that_dies_and_comes_back_gets_everything_and_no_secret_is_kept(
    tmp_path: Path, mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER", mlflow_server.address.replace("//", f"//someone:{SECRET}@"))
    monkeypatch.setenv("HUB_TOKEN", SECRET)
    run = make_run(tmp_path / "runs", tracking={"uri": "${env:TRACKER}"})
    follower = start_follower(run, drain_seconds=200)
    log_steps(run, range(1, 51))
    wait_for(lambda: "connection refused" in follower_log(run))
    mlflow_server.start()
    wait_for(lambda: mlflow_server.database.exists() and bool(sent(mlflow_server)))
    mlflow_server.kill()
    log_steps(run, range(51, 101))
    wait_for(lambda: follower_log(run).rstrip().endswith("trying again"))
    mlflow_server.start()
    mlflow_server.wait_until_up()
    # The run still trains, and nobody asks for anything.
    wait_for(lambda: len(losses(only_run(mlflow_server.database))) == 100)
    wait_for(lambda: follower_log(run).rstrip().endswith("sending again"))
    append_event(run, "finished", iteration=100)
    assert finish_follower(follower, 240)

    stored = only_run(mlflow_server.database)
    assert losses(stored) == [(step, 3 - step / 1000) for step in range(1, 101)]
    assert (stored.status, stored.params["tracking.uri"]) == ("FINISHED", "${env:TRACKER}")
    assert "not sent: MLflow at ${env:TRACKER}: it cannot be reached: connection refused" in follower_log(run)
    assert not (tmp_path / "runs" / "mlflow.db").exists()
    artifacts = list((mlflow_server.folder / "artifacts").rglob("resolved.json"))
    assert [path.read_bytes() for path in artifacts] == [(run.path / "resolved.json").read_bytes()]
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


class _Down:
    """A tracker whose server does not answer."""

    ending, num_metrics, longest_wait_seconds = Ending(), 0, LONGEST_WAIT_SECONDS

    def send(self, lock_seconds: float = 5.0) -> None:
        raise ConnectionError("refused")

    def close(self) -> None:
        raise AssertionError("nothing was sent")

    def explain(self, error: BaseException) -> str:
        return str(error)

    def bytes_left(self) -> int:
        return 1


def test_a_server_that_is_away_is_asked_ever_less_often_and_seconds_after_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_limits(monkeypatch, attempts_at_the_end=0)
    waits: list[float] = []

    class Outage(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            if len(waits) == 50:
                self.set()
            return self.is_set()

    said: list[str] = []
    follower_loop.Line(_Down(), said.append).follow(Outage())
    # Each wait is a random share of it, three quarters at least.
    for wait, longest in zip(waits, [4, 8] + [10] * 48, strict=True):
        assert 0.75 * longest <= wait <= longest
    assert said == ["not sent: refused; trying again"]


def sent(server: MlflowServer) -> list[object]:
    return [each for each in stored_runs(server.database) if len(losses(each)) == 50]


@pytest.mark.usefixtures("forked_sending")
def test_a_server_that_never_answers_delays_neither_a_step_nor_the_end(
    tmp_path: Path, silent_server: SilentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    run = make_run(tmp_path, tracking={"uri": silent_server.address})
    follower = start_follower(run, drain_seconds=0.5)
    wait_for(lambda: silent_server.num_connections > 0)
    log = MetricLog(run, lambda: None)
    started = time.monotonic()
    for step in range(200):
        log.append(step, step, step, {"train/loss": 1.0})
    assert time.monotonic() - started < 60
    assert follower.poll() is None
    started = time.monotonic()
    assert not finish_follower(follower, 120)
    assert time.monotonic() - started < 110  # a request alone would wait for ten minutes
    size = run.metrics_file.stat().st_size
    assert f"ended with {size} bytes of metrics.jsonl not sent" in follower_log(run)
    assert f"orchestrator sync {run.run_id}" in follower_log(run)


def test_a_follower_that_does_not_end_is_ended(tmp_path: Path) -> None:
    follower = start_follower(make_run(tmp_path), drain_seconds=600)
    os.kill(follower.pid, signal.SIGSTOP)
    started = time.monotonic()
    assert not finish_follower(follower, timeout=1)
    assert time.monotonic() - started < 120
    assert is_gone(follower.pid)


@pytest.mark.usefixtures("forked_sending")
def test_the_follower_of_an_untracked_run_ends_at_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, tracking={"mlflow": False})
    follower = start_follower(run)
    assert follower.wait(120) == 0
    assert finish_follower(follower)
    assert not (tmp_path / "mlflow.db").exists()


_UNREADABLE = """
import os, sys, time
from pathlib import Path
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking import follower_loop
from orchestrator.tracking.description import Ending
from orchestrator.tracking import follower_loop
from orchestrator.tracking.description import Ending

class Refusing(RunDir):
    def events(self):
        raise OSError(5, "Input/output error")

class Hanging:
    ending, num_metrics = Ending(), 0

    def send(self, lock_seconds=5.0):
        time.sleep(600)

    def bytes_left(self):
        raise OSError(5, "Input/output error")

follower_loop.asked_for = lambda run: ["hanging"]
follower_loop.tracker_of = lambda run, name: Hanging()
follower_loop.Follower(Refusing(Path(sys.argv[1])), os.getppid(), 1.0).follow()
"""


def test_a_run_directory_that_cannot_be_read_at_the_end_keeps_no_follower_alive(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", _UNREADABLE, str(run.path)],
        stdin=subprocess.DEVNULL,  # at its end: the parent is gone without a word
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 1, ended.stderr
    assert "the launcher's record of the end is missing: [Errno 5]" in follower_log(run)
