"""The state of a run on a cluster, while its job goes on writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from support.event_log import append_event

from orchestrator.launch.executor_protocol import JobState
from orchestrator.launch.states import run_states
from orchestrator.launch.states.cluster_states import SchedulerReport
from orchestrator.launch.states.submitted_job import SubmittedJob
from orchestrator.run_directory.rundir import RunDir

StatusWhile = Callable[..., run_states.RunStatus]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    append_event(run, "submitted", job_id="7", cluster="lab")
    append_event(run, "launched", launch_id="lab-7.0", job_id="7", nodes=["n1"])
    return run


FAILED = JobState("7", "over", "FAILED", "NonZeroExitCode", ("n1",), 1, says="SLURM says FAILED")


@pytest.fixture
def status_while(monkeypatch: pytest.MonkeyPatch) -> StatusWhile:
    """status_while(run, state, meanwhile): with a scheduler that says this of job 7, and takes its time over it."""

    def status(run: RunDir, state: JobState, meanwhile: Callable[[], object] = lambda: None) -> run_states.RunStatus:
        def ask(jobs: Iterable[SubmittedJob]) -> SchedulerReport:
            assert [job.unsettled for job in jobs] == [("7",)]
            meanwhile()
            return SchedulerReport({("slurm", "7"): state})

        monkeypatch.setattr(run_states, "ask_the_schedulers", ask)
        return run_states.status_of(run)

    return status


def test_a_job_that_ends_while_the_scheduler_is_asked_has_the_last_word(run: RunDir, status_while: StatusWhile) -> None:
    def end() -> None:
        append_event(run, "exited", launch_id="lab-7.0", code=1, cause="bug", message="ValueError: 3", iteration=3)

    status = status_while(run, FAILED, end)
    assert (status.state, status.cause, status.message) == ("failed", "bug", "ValueError: 3")


def test_of_a_job_submitted_meanwhile_the_scheduler_has_said_nothing(run: RunDir, status_while: StatusWhile) -> None:
    def submit_again() -> None:
        append_event(run, "submitted", job_id="8", cluster="lab")

    status = status_while(run, FAILED, submit_again)
    assert status.job is not None
    assert (status.job.job_id, status.cause) == ("7", "lost")
    assert "exit code 1" in str(status.message)


def test_a_job_that_its_executor_ended_says_so(tmp_path: Path, status_while: StatusWhile) -> None:
    run = RunDir(tmp_path)
    append_event(run, "submitted", job_id="7", cluster="lab")
    said = "while it waited for another run: SLURM says CANCELLED"
    never = JobState("7", "over", "CANCELLED", "Dependency", cause="cancelled", says=said)
    assert status_while(run, never).describe() == f"cancelled ({said} (Dependency))"


def test_a_job_of_an_executor_that_is_not_installed_is_told_by_its_run(run: RunDir) -> None:
    append_event(run, "submitted", job_id="8", cluster="elsewhere", executor="nobody's")
    status = run_states.status_of(run)
    assert (status.state, status.job is not None and status.job.executor) == ("queued", "nobody's")
    assert "nobody's" in str(status.reason)
