"""A run here that was started again by its launcher: after which ends, how often, and what is told of it meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from support.event_log import append_event
from support.gate import Gate
from support.light_forks import ForkedProgram
from support.refused import refused

from orchestrator.errors import RunIsHeld
from orchestrator.launch.local import restarts
from orchestrator.launch.local.restarts import launch_with_restarts
from orchestrator.launch.processes.launch_processes import ranks_of
from orchestrator.launch.start_checks import check_startable
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from tests.unit.launch.test_local import events, expected_losses, losses

MakeJob = Callable[..., JobSpec]
MakeRun = Callable[[JobSpec], RunDir]
Start = Callable[..., ForkedProgram]
Until = Callable[..., None]


def kill_a_rank(run: RunDir) -> None:
    launch_id = str(events(run, "launched")[-1]["launch_id"])
    os.kill(ranks_of(launch_id)[1], signal.SIGKILL)


def test_a_run_whose_rank_was_killed_goes_on_from_its_checkpoint(
    make_job: MakeJob,
    make_run: MakeRun,
    start_launcher: Start,
    until: Until,
    step_of: Callable[[RunDir], int],
    gate: Gate,
) -> None:
    run = make_run(make_job(launch={"env": gate.after(7), "requeue_delay": 1}))
    launcher = start_launcher(run)
    until(lambda: step_of(run) == 7)
    kill_a_rank(run)
    until(lambda: events(run, "requeued"))
    gate.open()
    assert launcher.wait(120) == 0
    assert [event["cause"] for event in events(run, "exited")] == ["killed", "completed"]
    [again] = events(run, "requeued")
    assert (again["by"], again["cause"], again["delay"]) == ("launcher", "killed", 1)
    [resumed] = events(run, "resumed")
    assert resumed["iteration"] in (5, 7)  # what was saved last: the other rank saves where it is told to stop in time
    assert losses(run) == expected_losses(20)
    assert (status_of(run).state, status_of(run).launches) == ("completed", 2)


def test_while_it_waits_it_is_running_and_a_stop_ends_that(
    make_job: MakeJob,
    make_run: MakeRun,
    start_launcher: Start,
    until: Until,
    step_of: Callable[[RunDir], int],
    orchestrator: Callable[..., tuple[int, str, str]],
    gate: Gate,
) -> None:
    job = make_job(launch={"env": gate.after(3), "requeue_delay": 600})
    run = make_run(job)
    launcher = start_launcher(run)
    until(lambda: step_of(run) == 3)
    kill_a_rank(run)
    until(lambda: events(run, "requeued"))
    status = status_of(run)
    assert (status.state, status.cause) == ("running", None)
    assert status.reason == "it restarts after this: a process was killed"
    with refused("run_is_held", f"pid {launcher.pid}", kind=RunIsHeld):
        check_startable(run, job, from_scratch=False)
    code, out, _ = orchestrator("cancel", "tiny")
    assert (code, launcher.wait(60)) == (0, 1)
    assert "at iteration 3: cancelled" in out
    [withdrawn] = events(run, "withdrawn")
    assert (withdrawn["launch_id"], withdrawn["by"]) == (status.launch_id, "orchestrator cancel")
    ended = status_of(run)
    assert (ended.state, ended.cause, ended.iteration, ended.launches) == ("cancelled", "cancelled", 3, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_as_cancel_does(
    make_job: MakeJob, make_run: MakeRun, start_launcher: Start, until: Until, step_of: Any, gate: Gate, number: int
) -> None:
    run = make_run(make_job(launch={"env": gate.after(3), "requeue_delay": 600}))
    launcher = start_launcher(run)
    until(lambda: step_of(run) == 3)
    kill_a_rank(run)
    until(lambda: events(run, "requeued"))
    launcher.send_signal(number)
    assert launcher.wait(60) == 1
    assert (status_of(run).state, events(run, "withdrawn")[0]["by"]) == ("cancelled", signal.Signals(number).name)


def test_a_run_that_fails_while_it_is_asked_to_stop_is_not_started_again(
    make_job: MakeJob, make_run: MakeRun, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@1")
    job = make_job(launch={"requeue_delay": 600, "on_failure": {"bug": "requeue"}})
    run = make_run(job)
    monkeypatch.setattr(restarts, "asked_to_stay", lambda run: "orchestrator cancel")  # as its ranks end
    end = launch_with_restarts(run, job, module=fake_runtime)
    assert (end.cause, status_of(run).state, events(run, "requeued")) == ("cancelled", "cancelled", [])


def test_a_run_whose_wait_was_ended_by_an_older_version_has_failed(make_job: MakeJob, make_run: MakeRun) -> None:
    run = make_run(make_job())
    dead = {"host": "elsewhere", "boot": "b", "pid": 1, "started": 1.0}
    append_event(run, "launched", launch_id="1", **dead)
    append_event(run, "exited", launch_id="1", code=1, cause="killed", message="", iteration=3, evidence=[])
    append_event(run, "requeued", launch_id="1", cause="killed", by="launcher", delay=1.0)
    append_event(run, "gave_up", launch_id="1", cause="killed", reason="a person asked for it")
    assert (status_of(run).state, status_of(run).cause) == ("failed", "killed")


@pytest.mark.parametrize(
    ("launch", "ends", "starts"),
    [
        ({"on_failure": {"killed": "stop"}}, "kill1@8", 1),
        ({}, "raise@3", 1),
        ({"on_failure": {"bug": "requeue"}, "max_requeues": 2}, "raise@3", 3),
    ],
)
def test_the_spec_says_which_ends_it_is_started_again_after_and_how_often(
    make_job: MakeJob,
    make_run: MakeRun,
    fake_runtime: str,
    monkeypatch: pytest.MonkeyPatch,
    launch: dict[str, Any],
    ends: str,
    starts: int,
) -> None:
    monkeypatch.setenv("FAKE_END", ends)
    job = make_job(launch={"requeue_delay": 1, **launch})
    run = make_run(job)
    end = launch_with_restarts(run, job, module=fake_runtime)
    assert (end.cause, end.code) == ("killed" if "kill" in ends else "bug", 1)
    assert len(events(run, "launched")) == starts
    assert len(events(run, "requeued")) == starts - 1
    assert status_of(run).state == "failed"


def test_a_start_by_a_person_has_all_its_restarts_again(
    make_job: MakeJob, make_run: MakeRun, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@3")
    job = make_job(launch={"requeue_delay": 1, "max_requeues": 1, "on_failure": {"bug": "requeue"}})
    run = make_run(job)
    for starts in (2, 4):
        launch_with_restarts(run, job, from_scratch=starts > 2, module=fake_runtime)
        assert len(events(run, "launched")) == starts


def test_the_command_says_that_it_starts_again(
    make_job: MakeJob,
    orchestrator: Callable[..., tuple[int, str, str]],
    runs_dir: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@3")
    job = make_job(launch={"requeue_delay": 1, "max_requeues": 1, "on_failure": {"bug": "requeue"}})
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    again = "it restarts in 1s, from iteration 0 (launch.on_failure)"
    gave_up = "it is not restarted: it was restarted 1 times (launch.max_requeues)"
    code, out, _ = orchestrator("run", tmp_path / "job.yaml")
    assert (code, out.count(again), out.count(gave_up)) == (1, 1, 1)
    code, out, err = orchestrator("run", tmp_path / "job.yaml", "--json", "--new")
    assert (code, json.loads(out)["state"]) == (1, "failed")
    assert again in err
