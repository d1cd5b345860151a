"""Who is told of a run's end: real launches, a real command, a real HTTP server."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event, lines_of, log_of
from support.gate import Gate
from support.light_forks import ForkedProgram, LightForks

from orchestrator.launch.local.launcher import launch
from orchestrator.launch.notifications.notice import notice_of
from orchestrator.launch.notifications.occasions import occasion_of
from orchestrator.launch.notifications.process import start_telling, tell_of_withdrawn
from orchestrator.launch.processes.launch_processes import ranks_of
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.job import JobSpec

Run = Callable[[JobSpec], RunDir]
MakeJob = Callable[..., JobSpec]
ToldOf = Callable[[RunDir], None]
Start = Callable[..., ForkedProgram]
Until = Callable[..., None]
Orchestrator = Callable[..., tuple[int, str, str]]

SECRET = "T0K3N"
KEEP = """
import os, sys
open(sys.argv[1], "a").write(sys.stdin.read() + "\\n" + os.environ["ORCHESTRATOR_TEXT"] + "\\n\\n")
"""


class Hook:
    """A webhook on loopback. `answers`: the status of each request, or None to say nothing for a while."""

    def __init__(self, *answers: int | None) -> None:
        self.received: list[dict[str, Any]] = []
        self.requests = 0
        self.is_open = True
        left = list(answers)
        released = self._released = threading.Event()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == f"/{SECRET}"
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.requests += 1
                status = left.pop(0) if left else 200
                if status is None:
                    released.wait(60)
                    return
                if status == 200:
                    hook.received.append(body)
                self.send_response(status)
                if status == 301:
                    self.send_header("Location", f"http://127.0.0.1:{hook.port}/elsewhere")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.is_open = False
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def make_hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hook]]:
    """make_hook(*answers): a webhook, whose address is in $HOOK."""
    hooks: list[Hook] = []

    def make(*answers: int | None) -> Hook:
        hooks.append(Hook(*answers))
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{hooks[-1].port}/{SECRET}")
        return hooks[-1]

    yield make
    for hook in hooks:
        if hook.is_open:
            hook.close()


def notified(run: RunDir) -> list[dict[str, Any]]:
    return [event for event in lines_of(run) if event["event"] == "notified"]


def test_a_run_that_completes(
    make_job: MakeJob, make_run: Run, fake_runtime: str, make_hook: Callable[..., Hook], tmp_path: Path, until: Until
) -> None:
    hook, kept = make_hook(), tmp_path / "kept"
    job = make_job(
        notifications={
            "when": ["started", "completed", "failed"],
            "command": [sys.executable, "-c", KEEP, str(kept)],
            "webhook": "${env:HOOK}",
            "webhook_fields": {"topic": "mine"},
            "timeout": 120,
        }
    )
    run = make_run(job)
    assert launch(run, job, module=fake_runtime).cause == "completed"
    until(lambda: len(notified(run)) == 2)
    assert [(event["occasion"], event["told"], event["failed"]) for event in notified(run)] == [
        ("started", ["command", "webhook"], {}),
        ("completed", ["command", "webhook"], {}),
    ]
    started, body = hook.received
    assert (started["occasion"], started["run"]["state"], started["topic"]) == ("started", "running", "mine")
    assert body["occasion"] == "completed"
    assert body["text"] == body["content"] == body["message"]
    assert body["text"].startswith(f"tiny/{run.run_id} completed at iteration 20 of 20 after ")
    facts = body["run"]
    assert (facts["run_id"], facts["name"], facts["state"]) == (run.run_id, "tiny", "completed")
    assert (facts["iteration"], facts["train_iters"], facts["checkpoint_iteration"]) == (20, 20, 20)
    assert facts["checkpoint"] == str(run.checkpoint(20))
    assert 0 < facts["seconds"] < 120
    by_command = kept.read_text().strip().split("\n\n")
    assert json.loads(by_command[1].splitlines()[0])["run"] == facts
    assert by_command[1].splitlines()[1:] == body["text"].splitlines()
    for path in run.path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(("ends", "cause"), [("raise@3", "bug"), ("kill1@5", "killed")])
def test_a_run_that_fails_is_told_with_its_evidence(
    ends: str,
    cause: str,
    make_job: MakeJob,
    make_run: Run,
    fake_runtime: str,
    make_hook: Callable[..., Hook],
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
    gate: Gate,
) -> None:
    hook = make_hook(503)  # once; then it is well again
    monkeypatch.setenv("FAKE_END", ends)
    job = make_job(notifications={"webhook": "${env:HOOK}", "timeout": 120}, launch__env=gate.after(5))
    run = make_run(job)
    end = launch(run, job, module=fake_runtime)
    assert end.cause == cause
    until(lambda: notified(run))
    [body] = hook.received
    assert hook.requests == 2
    assert (body["occasion"], body["run"]["cause"], body["run"]["message"]) == ("failed", cause, end.message)
    assert body["run"]["evidence"] == list(end.evidence)
    assert all(line in body["text"] for line in end.evidence)


def test_a_launcher_that_is_killed_is_told_of(
    make_job: MakeJob,
    make_run: Run,
    start_launcher: Start,
    make_hook: Callable[..., Hook],
    until: Until,
    step_of: Any,
    gate: Gate,
) -> None:
    hook = make_hook()
    job = make_job(notifications={"webhook": "${env:HOOK}", "timeout": 120}, launch__env=gate.after(3))
    run = make_run(job)
    launcher = start_launcher(run)
    until(lambda: step_of(run) == 3)
    launcher.send_signal(signal.SIGKILL)
    until(lambda: notified(run))
    [body] = hook.received
    assert (body["occasion"], body["run"]["cause"], body["run"]["state"]) == ("failed", "killed", "failed")
    assert "its launcher was killed; the ranks saved and stopped" in body["text"]
    assert body["run"]["iteration"] == body["run"]["checkpoint_iteration"]
    until(lambda: ranks_of(body["run"]["launch_id"]) == {})  # the last of them may still be on its way out


def test_a_command_and_a_webhook_that_hang_harm_no_run(
    make_job: MakeJob, make_run: Run, fake_runtime: str, make_hook: Callable[..., Hook], until: Until
) -> None:
    hook = make_hook(None, None)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    ways = {"webhook": "${env:HOOK}", "command": sleeps, "timeout": 2}
    job = make_job(schedule__train_iters=5, notifications=ways)
    run = make_run(job)
    assert launch(run, job, module=fake_runtime).code == 0
    ended = time.monotonic()
    assert [event["event"] for event in lines_of(run)][-1] == "exited"  # the launch is over before anybody is told
    until(lambda: notified(run))
    assert time.monotonic() - ended < 30
    [event] = notified(run)
    problem = "the webhook did not answer in time"
    assert event["told"] == []
    assert event["failed"] == {"command": f"{sys.executable} took longer than 2 s and was ended", "webhook": problem}
    assert f"completed: webhook: {problem}" in (run.logs / "notifications.log").read_text()
    assert hook.requests == 2


@pytest.fixture
def ended_run(make_job: MakeJob, make_run: Run) -> Callable[..., RunDir]:
    """ended_run(**notifications): a run that has completed."""

    def make(**notifications: Any) -> RunDir:
        run = make_run(make_job(notifications=notifications))
        append_event(run, "launched", launch_id="l", host="node7")
        append_event(run, "exited", launch_id="l", cause="completed", message="", iteration=20)
        return run

    return make


@pytest.fixture
def told_of(light_forks: LightForks, tmp_path: Path) -> Callable[[RunDir], None]:
    """told_of(run): the program, to its end; it says nothing and never fails."""

    def tell(run: RunDir) -> None:
        with open(tmp_path / "said", "wb") as output:
            program = light_forks.start(
                "orchestrator.launch.notifications", run.path, "l", env=os.environ, output=output
            )
        assert (program.wait(120), (tmp_path / "said").read_text()) == (0, "")
        program.close()

    return tell


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (404, "the webhook responded with status 404"),
        (301, "the webhook responded with status 301"),
        (None, "the webhook cannot be reached: Connection refused"),
    ],
    ids=["refuses", "redirects", "nobody-there"],
)
def test_a_webhook_that_is_of_no_use(
    answer: int | None, problem: str, ended_run: Callable[..., RunDir], make_hook: Callable[..., Hook], told_of: ToldOf
) -> None:
    hook = make_hook(*([answer] if answer else []))
    if answer is None:
        hook.close()
    run = ended_run(webhook="${env:HOOK}")
    told_of(run)
    assert notified(run)[0]["failed"] == {"webhook": problem}
    assert SECRET not in (run.logs / "notifications.log").read_text()
    assert hook.requests == (1 if answer else 0)


def test_a_secret_that_is_not_set_and_an_address_that_is_none(
    ended_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch, told_of: ToldOf
) -> None:
    run = ended_run(webhook="${env:HOOK}")
    monkeypatch.delenv("HOOK", raising=False)
    told_of(run)
    monkeypatch.setenv("HOOK", f"file:///{SECRET}")
    told_of(run)
    assert [event["failed"]["webhook"] for event in notified(run)] == [
        "${env:HOOK} is used in the spec, but HOOK is not set in the environment",
        "the address of the webhook does not begin with http:// or https://",
    ]


def test_no_secret_and_no_endless_line_is_told(
    make_job: MakeJob, make_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", f"https://hooks.example.org/{SECRET}")
    monkeypatch.setenv("WANDB_API_KEY", "a-key-of-wandb")
    run = make_run(job := make_job(notifications={"webhook": "${env:HOOK}"}))
    append_event(run, "launched", launch_id="l", host="node7")
    said = f"KeyError: https://hooks.example.org/{SECRET} a-key-of-wandb https://me:p@ss@host/x"
    evidence = [f"rank-00000.log: {said} {'x' * 200_000}"]
    append_event(run, "exited", launch_id="l", cause="bug", message=said, iteration=3, evidence=evidence)
    notice = notice_of(run, job, "l", "failed")
    kept = "KeyError: ${env:HOOK} ${env:WANDB_API_KEY} https://***@host/x"
    assert notice.facts["message"] == kept
    [line] = notice.facts["evidence"]
    assert line.startswith(f"rank-00000.log: {kept} xxx")
    assert len(line) == 1000
    everything = json.dumps(notice.body({})) + json.dumps(notice.environment())
    assert SECRET not in everything
    assert "a-key-of-wandb" not in everything
    assert len(everything) < 15_000


def test_a_stop_is_told_once(make_job: MakeJob, make_run: Run) -> None:
    run = make_run(job := make_job())
    append_event(run, "launched", launch_id="l", host="node7")
    message = "stopped at iteration 17 of 20"
    append_event(run, "exited", launch_id="l", cause="stopped", message=message, iteration=17)
    notice = notice_of(run, job, "l", "stopped")
    assert notice.text.count("stopped") == 1
    assert notice.facts["message"] == message


def test_somebody_is_told_where_no_log_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    telling = start_telling("platform", [], tmp_path / "logs", subprocess.DEVNULL)
    assert telling is not None
    assert telling.wait(120) == 0


def test_nobody_is_told_of_what_nobody_asked_for(
    ended_run: Callable[..., RunDir], make_hook: Callable[..., Hook], told_of: ToldOf
) -> None:
    hook = make_hook()
    run = ended_run(webhook="${env:HOOK}", when=["completed"])
    run.membership.write_text("{}")  # a cell of a sweep: only its failure would be told
    told_of(run)
    assert hook.requests == 0
    run.membership.unlink()
    told_of(run)
    assert hook.requests == 1


def test_it_is_told_by_hand(
    make_job: MakeJob, make_run: Run, make_hook: Callable[..., Hook], orchestrator: Orchestrator
) -> None:
    hook = make_hook(200, 500, 500)
    job = make_job(notifications={"webhook": "${env:HOOK}", "command": ["/no/such/program"]})
    run = make_run(job)
    code, out, err = orchestrator("notify", run.run_id)
    assert (code, err) == (1, "command: /no/such/program cannot be started: No such file or directory\n")
    assert out.startswith("webhook: told\n")
    assert hook.received[0]["text"].startswith(f"tiny/{run.run_id} started")
    code, out, _ = orchestrator("notify", run.run_id, "--json")
    assert code == 1
    assert json.loads(out)["failed"]["webhook"] == "the webhook responded with status 500"
    mute = make_run(make_job(name="mute"))
    code, _, err = orchestrator("notify", mute.run_id)
    assert (code, err) == (
        2,
        f"error: run mute/{mute.run_id} has no notifications: its spec has neither notifications.command nor "
        f".webhook\n",
    )


def test_a_line_that_is_the_reason_is_told_once(ended_run: Callable[..., RunDir], make_job: MakeJob) -> None:
    run = ended_run()
    append_event(run, "launched", launch_id="b")
    append_event(
        run, "exited", launch_id="b", cause="requeued", message="STEP 3 CANCELLED", evidence=["STEP 3 CANCELLED"]
    )
    notice = notice_of(run, make_job(), "b", "requeued")
    assert notice.text.count("STEP 3 CANCELLED") == 1
    assert notice.facts["evidence"] == ["STEP 3 CANCELLED"]


def test_a_start_is_told_from_its_checkpoint(ended_run: Callable[..., RunDir], make_job: MakeJob) -> None:
    """What the launch before measured after it is lost, where its node died."""
    run = ended_run()
    append_line(run.metrics_file, {"time": 1, "iteration": 7, "samples": 7, "tokens": 7, "values": {"train/loss": 1.0}})
    append_event(run, "launched", launch_id="b")
    assert notice_of(run, make_job(), "b", "started").text.startswith(f"tiny/{run.run_id} started\n")
    run.checkpoint(5).mkdir(parents=True)
    write_commit(run.checkpoint(5), iteration=5, consumed_samples=5, files={})
    assert notice_of(run, make_job(), "b", "started").text.startswith(f"tiny/{run.run_id} started at iteration 5 of ")


def test_a_run_that_was_cancelled_is_told_so_once(ended_run: Callable[..., RunDir], make_job: MakeJob) -> None:
    run = ended_run()
    message = "ended at once, without waiting for a save, by a second SIGINT"
    append_event(run, "launched", launch_id="b")
    append_event(run, "exited", launch_id="b", cause="cancelled", message=message, iteration=7)
    notice = notice_of(run, make_job(), "b", "stopped")
    assert notice.facts["state"] == "cancelled"
    assert notice.text.startswith(f"tiny/{run.run_id} was cancelled at iteration 7 of 20 after 0s: {message}\n")


@pytest.mark.parametrize("has_trained", [False, True])
def test_a_run_that_is_taken_out_of_the_queue_is_told_of(
    has_trained: bool, make_job: MakeJob, make_run: Run, make_hook: Callable[..., Hook], until: Until
) -> None:
    """No process of the run is left then, or there never was one."""
    hook = make_hook()
    run = make_run(make_job(notifications={"when": ["stopped"], "webhook": "${env:HOOK}"}))
    mute = make_run(make_job(notifications={"when": ["failed"], "webhook": "${env:HOOK}"}))
    append_event(run, "submitted", job_id="7", cluster="test")
    if has_trained:
        append_line(run.metrics_file, {"time": 1, "iteration": 5, "samples": 5, "tokens": 5, "values": {"lr": 1.0}})
        append_event(run, "launched", launch_id="a", job_id="7", host="n1")
        append_event(run, "exited", launch_id="a", cause="preempted", message="for another", iteration=5)
        append_event(run, "requeued", launch_id="a")
    append_event(run, "withdrawn", job_id="7", by="orchestrator cancel")
    tell_of_withdrawn([mute, run])
    until(lambda: len(notified(run)) == 1)
    [body] = hook.received
    where = " at iteration 5 of 20" if has_trained else ""
    first = f"tiny/{run.run_id} was cancelled{where}: taken out of the queue by orchestrator cancel"
    assert body["text"].splitlines()[0] == first
    facts = body["run"]
    assert (body["occasion"], facts["state"], facts["job_id"], facts["seconds"]) == ("stopped", "cancelled", "7", None)


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"event": kind, "launch_id": "l", **fields}


@pytest.mark.parametrize(
    ("events", "occasion"),
    [
        ([event("launched")], None),
        ([event("exited", cause="held")], None),
        ([event("exited", cause="lease_lost")], None),
        ([event("exited", cause="cancelled")], "stopped"),
        ([event("exited", cause="time_limit"), event("gave_up")], "failed"),
        ([event("exited", cause="time_limit"), event("requeued")], "requeued"),
        ([event("exited", cause="bug"), event("requeued"), event("requeue_failed")], "failed"),
        ([event("exited", cause="bug"), {"event": "exited", "cause": "completed", "launch_id": "m"}], "failed"),
        ([event("exited", cause="bug"), event("requeued"), {"event": "withdrawn"}], "stopped"),
        ([event("exited", cause="bug"), {"event": "withdrawn"}, {"event": "submitted"}], "failed"),
    ],
)
def test_what_became_of_a_start(events: list[dict[str, Any]], occasion: str | None) -> None:
    assert occasion_of(log_of(*events), "l") == occasion
