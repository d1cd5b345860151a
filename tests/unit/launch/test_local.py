"""Launching, with real processes: two ranks of a fake training program, real signals, and the real torchrun where it
matters what that does.
"""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.event_log import lines_of
from support.faults import QUICK_TORCHRUN
from support.gate import Gate
from support.light_forks import ForkedProgram
from support.refused import refused

from orchestrator.errors import RunIsHeld
from orchestrator.launch.local.launcher import Watcher, launch
from orchestrator.launch.processes.launch_processes import end_processes, processes_of, ranks_of
from orchestrator.launch.processes.stop_request import request_stop
from orchestrator.launch.states.run_states import status_of
from orchestrator.launch.watch import LineWatcher
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.spec.job import JobSpec
from tests.unit.launch.conftest import fork_torchrun

Run = Callable[[JobSpec], RunDir]
MakeJob = Callable[..., JobSpec]
Start = Callable[..., ForkedProgram]
Until = Callable[..., None]
StepOf = Callable[[RunDir], int]

ENDLESS_STEP = {"FAKE_STEP_SECONDS": "600"}
"""Who is in the middle of it hears no request to stop."""


@pytest.fixture(params=["forked"])
def torchrun(request: pytest.FixtureRequest, fake_runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts the ranks: torchrun itself, as a program that imports torch ("real") or as one that is forked; or
    ("quick") what is there at once, as where this is not asked for.
    """
    if request.param == "real":
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    if request.param == "forked":
        fork_torchrun(request.getfixturevalue("ranks"), monkeypatch)


WITH_TORCHRUN = pytest.mark.usefixtures("torchrun")


def losses(run: RunDir) -> dict[int, float]:
    """iteration → loss; where a step was done twice the last counts."""
    return {record["iteration"]: record["values"]["train/loss"] for record in read_lines(run.metrics_file)}


def expected_losses(total: int) -> dict[int, float]:
    """What the fake computes when nothing interrupts it."""
    values, loss = {}, 1.0
    for iteration in range(1, total + 1):
        loss = loss * 0.9 + 1e-3
        values[iteration] = loss
    return values


def events(run: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines_of(run) if event["event"] == kind]


def launch_id(run: RunDir) -> str:
    return str(events(run, "launched")[-1]["launch_id"])


@dataclass(frozen=True)
class Training:
    """A run with a launcher of its own, whose training waits at the gate after a step."""

    job: JobSpec
    run: RunDir
    launcher: ForkedProgram
    gate: Gate
    module: str
    monkeypatch: pytest.MonkeyPatch

    def goes_on_to_its_end(self) -> None:
        """Started again it ends with what an uninterrupted training computes."""
        start_again(self.run, self.job, self.module, self.gate, self.monkeypatch)


def start_again(run: RunDir, job: JobSpec, module: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end of an uninterrupted training. What torchrun does has shown before: this start is by the quick one."""
    monkeypatch.setenv("PYTHONPATH", str(QUICK_TORCHRUN), prepend=os.pathsep)
    gate.open()
    assert launch(run, job, module=module).cause == "completed"
    assert losses(run) == expected_losses(20)


@pytest.fixture
def training_at(
    make_job: MakeJob,
    make_run: Run,
    start_launcher: Start,
    until: Until,
    step_of: StepOf,
    fake_runtime: str,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[int], Training]:
    """training_at(iteration): one that has done so many steps and waits for the gate."""

    def start(iteration: int) -> Training:
        # What starts again by itself is in test_restarts.py.
        job = make_job(launch__env=gate.after(iteration), launch__on_failure={"killed": "stop"})
        run = make_run(job)
        launcher = start_launcher(run)
        until(lambda: step_of(run) == iteration)
        return Training(job, run, launcher, gate, fake_runtime, monkeypatch)

    return start


@WITH_TORCHRUN
def test_run_to_the_end(make_job: MakeJob, make_run: Run, fake_runtime: str) -> None:
    job = make_job()
    run = make_run(job)
    end = launch(run, job, module=fake_runtime)
    assert (end.cause, end.iteration, end.code) == ("completed", 20, 0)
    assert losses(run) == expected_losses(20)
    assert [event["event"] for event in lines_of(run)][:3] == ["created", "launched", "started"]
    assert events(run, "exited")[0]["cause"] == "completed"
    assert status_of(run).state == "completed"
    assert run.launch_script.read_text().startswith("#!/usr/bin/env bash")
    assert "rank 1 of 2" in run.rank_log(1).read_text()


@WITH_TORCHRUN
@pytest.mark.parametrize(
    ("number", "torchrun"),
    [(signal.SIGINT, "quick"), (signal.SIGTERM, "forked"), (signal.SIGUSR1, "quick")],
    indirect=["torchrun"],
)
def test_signal_to_the_launcher_saves_and_stops(number: signal.Signals, training_at: Callable[[int], Training]) -> None:
    training = training_at(7)
    run = training.run
    assert status_of(run).state == "running"
    training.launcher.send_signal(number)
    assert training.launcher.wait(120) == 1
    status = status_of(run)
    assert (status.state, status.cause) == ("stopped", "stopped")
    assert committed(run)[-1].iteration == status.iteration
    assert processes_of(launch_id(run)) == {}
    training.goes_on_to_its_end()
    assert len(list(read_lines(run.metrics_file))) == 20  # no step was lost, none done twice


def test_second_interrupt_ends_at_once(make_job: MakeJob, make_run: Run, start_launcher: Start, until: Until) -> None:
    run = make_run(make_job(launch__env=ENDLESS_STEP))
    launcher = start_launcher(run)
    until(lambda: events(run, "started"))
    launcher.send_signal(signal.SIGINT)
    until(run.stop_file.exists)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(120) == 1
    assert processes_of(launch_id(run)) == {}
    assert events(run, "exited")[0]["cause"] == "cancelled"
    assert "second SIGINT" in events(run, "exited")[0]["message"]
    assert committed(run) == []


@WITH_TORCHRUN
@pytest.mark.parametrize("torchrun", ["real"], indirect=True)
def test_killed_launcher_makes_the_ranks_save_and_stop(training_at: Callable[[int], Training], until: Until) -> None:
    training = training_at(7)
    run = training.run
    training.launcher.kill()
    training.launcher.wait()
    until(lambda: processes_of(launch_id(run)) == {})
    assert events(run, "stop_requested")[0]["by"] == "SIGTERM"
    assert events(run, "exited") == []
    assert status_of(run).state == "stopped"
    training.goes_on_to_its_end()


@WITH_TORCHRUN
def test_killed_rank_is_named_with_its_signal_and_resumes(
    make_job: MakeJob, make_run: Run, fake_runtime: str, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    job = make_job(launch__env=gate.after(8))
    run = make_run(job)
    monkeypatch.setenv("FAKE_END", "kill1@8")
    end = launch(run, job, module=fake_runtime)
    assert (end.cause, end.code) == ("killed", 1)
    assert end.message.startswith("rank 1 was ended by SIGKILL")
    assert status_of(run).state == "failed"
    monkeypatch.delenv("FAKE_END")
    start_again(run, job, fake_runtime, gate, monkeypatch)


def test_killed_torchrun_leaves_nobody_behind(training_at: Callable[[int], Training], until: Until) -> None:
    training = training_at(3)
    run = training.run
    until(lambda: sorted(ranks_of(launch_id(run))) == [0, 1])
    torchrun = [pid for pid, environment in processes_of(launch_id(run)).items() if "RANK" not in environment]
    assert len(torchrun) == 1
    os.kill(torchrun[0], signal.SIGKILL)
    assert training.launcher.wait(120) == 1
    assert processes_of(launch_id(run)) == {}
    assert events(run, "exited")[0]["message"] == "torchrun was ended by SIGKILL"


@WITH_TORCHRUN
@pytest.mark.parametrize(
    ("end", "cause", "message", "torchrun"),
    [
        ("nan@7", "nan", "the loss was NaN in 10 consecutive steps", "quick"),
        ("raise@7", "bug", "ValueError: the fake has a bug", "forked"),
        ("memory@7", "out_of_memory", "MemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "quick"),
    ],
    indirect=["torchrun"],
)
def test_failure_has_a_cause(
    end: str,
    cause: str,
    message: str,
    make_job: MakeJob,
    make_run: Run,
    fake_runtime: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where torchrun's SIGTERM ends the other rank, which is still on its way."""
    run = make_run(job := make_job())
    monkeypatch.setenv("FAKE_END", end)
    monkeypatch.setenv("FAKE_LATE_SECONDS", "600")
    found = launch(run, job, module=fake_runtime)
    assert "closing signal SIGTERM" in run.launcher_log.read_text()
    assert (found.cause, found.message, found.code) == (cause, message, 1)
    status = status_of(run)
    assert (status.state, status.cause, status.message) == ("failed", cause, message)


def test_program_that_cannot_be_started(make_job: MakeJob, make_run: Run, fake_runtime: str) -> None:
    run = make_run(job := make_job())
    end = launch(run, job, module="no_such_program")
    assert end.cause == "bug"
    assert "No module named no_such_program" in end.message


def test_start_without_a_checkpoint_is_refused_unless_told_to_start_over(
    make_job: MakeJob, make_run: Run, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(job := make_job())
    monkeypatch.setenv("FAKE_END", "raise@3")
    launch(run, job, module=fake_runtime)
    monkeypatch.delenv("FAKE_END")
    with refused("no_checkpoint_to_resume", "--from-scratch"):
        launch(run, job, module=fake_runtime)
    assert status_of(run).cause == "bug"
    assert launch(run, job, module=fake_runtime, from_scratch=True).cause == "completed"


def test_run_of_a_live_run_is_refused(
    make_job: MakeJob, make_run: Run, start_launcher: Start, until: Until, gate: Gate
) -> None:
    run = make_run(job := make_job(launch={"python": gate.python(), "env": ENDLESS_STEP}))
    launcher = start_launcher(run)
    until(lambda: events(run, "launched"))
    with refused("run_is_held", f"pid {launcher.pid} on {os.uname().nodename}", kind=RunIsHeld):
        launch(run, job)
    gate.open()
    until(lambda: events(run, "started"))
    rank = ranks_of(launch_id(run))[0]
    with refused("run_is_held", f"pid {rank} on {os.uname().nodename}", kind=RunIsHeld):
        launch(run, job)
    assert len(events(run, "launched")) == 1


def test_lost_race_for_the_lease_is_held_and_does_not_change_the_state(
    make_job: MakeJob, make_run: Run, fake_runtime: str, gate: Gate
) -> None:
    """Another host takes the run between our look and our start."""
    run = make_run(job := make_job(launch__python=gate.python()))
    leases = []

    def take_it(launch_id: str) -> None:
        leases.append(Lease.acquire(run, launch_id="elsewhere"))
        gate.open()

    end = launch(run, job, module=fake_runtime, on_launched=take_it)
    assert (end.cause, end.code) == ("held", 2)
    assert f"held by pid {os.getpid()}" in end.message
    assert status_of(run).state == "running"
    leases[0].release()


def test_stop_file_stops_and_an_old_one_does_not(
    make_job: MakeJob, make_run: Run, start_launcher: Start, until: Until, fake_runtime: str, gate: Gate
) -> None:
    run = make_run(job := make_job(launch__env=gate.after(3)))
    launcher = start_launcher(run)
    until(lambda: events(run, "started"))
    request_stop(run, "cancel")
    assert launcher.wait(120) == 1
    assert status_of(run).state == "stopped"
    assert run.stop_file.exists()
    gate.open()
    assert launch(run, job, module=fake_runtime).cause == "completed"


def test_stop_at_once_through_the_stop_file(
    make_job: MakeJob, make_run: Run, start_launcher: Start, until: Until
) -> None:
    run = make_run(make_job(launch__env=ENDLESS_STEP))
    launcher = start_launcher(run)
    until(lambda: events(run, "started"))
    request_stop(run, "cancel --now", at_once=True)
    assert launcher.wait(120) == 1
    assert "cancel --now" in events(run, "exited")[0]["message"]
    assert (status_of(run).state, status_of(run).cause) == ("cancelled", "cancelled")


def test_a_launcher_that_was_paused_when_its_run_was_cancelled_says_so(
    training_at: Callable[[int], Training], until: Until
) -> None:
    """`cancel --now` ends the others itself where the launcher does not."""
    training = training_at(3)
    run = training.run
    training.launcher.send_signal(signal.SIGSTOP)
    for rank in ranks_of(launch_id(run)).values():
        os.kill(rank, signal.SIGSTOP)  # else it may still stop by itself, and say so
    request_stop(run, "cancel --now", at_once=True)
    end_processes(launch_id(run))
    training.launcher.send_signal(signal.SIGCONT)
    assert training.launcher.wait(120) == 1
    assert "cancel --now" in events(run, "exited")[-1]["message"]
    assert status_of(run).state == "cancelled"


def test_who_was_not_found_at_first_is_ended_at_the_next_look(
    make_job: MakeJob, make_run: Run, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process is for a moment that becomes another program: it has no environment then."""
    looks: list[str] = []

    def misses_all_at_first(launch_id: str, grace: float = 0.0) -> list[int]:
        looks.append(launch_id)
        return end_processes(launch_id, grace) if len(looks) > 2 else []

    class CancelsAtTheStart(Watcher):
        def poll(self) -> None:
            if events(run, "started") and not run.stop_file.exists():
                request_stop(run, "cancel --now", at_once=True)

    monkeypatch.setattr("orchestrator.launch.local.launcher.end_processes", misses_all_at_first)
    run = make_run(job := make_job(launch__env=ENDLESS_STEP))
    assert launch(run, job, module=fake_runtime, watcher=CancelsAtTheStart()).cause == "cancelled"
    assert processes_of(launch_id(run)) == {}


def test_what_had_saved_before_it_was_ended_was_stopped(make_job: MakeJob, make_run: Run, fake_runtime: str) -> None:
    class LosesPatienceTooLate(Watcher):
        def poll(self) -> None:
            if events(run, "started") and not run.stop_file.exists():
                record = run.exit_record(launch_id(run), 0)
                record.parent.mkdir(parents=True)
                record.write_text(json.dumps({"cause": "stopped", "message": "", "iteration": 7}))
                request_stop(run, "cancel --now", at_once=True)

    run = make_run(job := make_job(launch__env=ENDLESS_STEP))
    end = launch(run, job, module=fake_runtime, watcher=LosesPatienceTooLate())
    assert (end.cause, end.iteration, end.code) == ("stopped", 7, 1)


def test_everything_killed_is_lost_and_resumes(training_at: Callable[[int], Training], until: Until) -> None:
    training = training_at(7)
    run, launcher = training.run, training.launcher
    until(lambda: sorted(ranks_of(launch_id(run))) == [0, 1])
    launcher.send_signal(signal.SIGSTOP)  # so that it writes nothing when its children die
    found = processes_of(launch_id(run))
    for pid in sorted(found, key=lambda pid: "RANK" in found[pid]):  # torchrun first, which would end the ranks
        os.kill(pid, signal.SIGKILL)
    launcher.kill()
    launcher.wait()
    until(lambda: status_of(run).state == "lost")  # the ranks are nobody's children here: they end when they end
    with open(run.events_file, "ab") as file:
        file.write(b'{"time": 1, "event": "chec')  # a line torn by the crash
    training.goes_on_to_its_end()
    assert [event["iteration"] for event in events(run, "resumed")] == [5]


@pytest.mark.parametrize("output", ["closed pipe", "full disk"])
def test_training_goes_on_when_nothing_can_be_shown(
    output: str, make_job: MakeJob, make_run: Run, fake_runtime: str
) -> None:
    run = make_run(job := make_job())
    if output == "full disk":
        out = open("/dev/full", "w")  # noqa: SIM115
    else:
        reader, writer = os.pipe()
        os.close(reader)
        out = os.fdopen(writer, "w")
    end = launch(run, job, module=fake_runtime, watcher=LineWatcher(run, 20, out, seconds_between_lines=0))
    with pytest.raises(OSError, match=r"Broken pipe|No space left"):
        out.close()
    assert (end.cause, end.code) == ("completed", 0)
    assert events(run, "exited")[0]["cause"] == "completed"


def test_python_that_is_not_there(make_job: MakeJob, make_run: Run) -> None:
    job = make_job(launch__python="/nowhere/python")
    with refused("missing_python", "launch.python", "/nowhere/python"):
        launch(make_run(job), job)
