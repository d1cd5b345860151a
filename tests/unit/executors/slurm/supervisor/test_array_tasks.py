"""A supervisor that is a task of an array: what it calls its job, and who puts that back into the queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.event_log import append_event, lines_of
from support.fake_slurm import FakeSlurm
from support.refusals import after

from orchestrator.executors.slurm.supervisor.job_end import conclude, left_to_caller
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.launch.processes.launch_processes import REQUEUE_CODE_VARIABLE
from orchestrator.launch.requeue_policy import Decision
from orchestrator.launch.states.submitted_job import latest_job
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.lease import supersedes
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_text
from tests.unit.sweeps.conftest import JOB


def test_a_task_of_an_array_goes_by_the_scheduler_s_name() -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_NODELIST": "n1"}
    first, again = SlurmJob.of(variables), SlurmJob.of({**variables, "SLURM_RESTART_COUNT": "1"})
    assert (first.job_id, first.launch_id) == ("5_2", "slurm-5_2.0")
    assert supersedes(again.launch_id, first.launch_id)
    assert not supersedes("slurm-5_3.1", first.launch_id)


@pytest.mark.parametrize(
    ("decision", "code"),
    [
        (Decision(True, "preempted"), 75),
        (Decision(True, "hang", delay=30.0), None),
        (Decision(True, "node_fail", exclude=("n1",)), None),
        (Decision(False, "nothing is left to do"), None),
    ],
)
def test_a_plain_requeue_is_left_to_who_offered_it(
    decision: Decision, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left_to_caller(decision) is None, "nobody offered"
    monkeypatch.setenv(REQUEUE_CODE_VARIABLE, "75")
    assert left_to_caller(decision) == code


def scheduler_that_requeues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm(folder / "slurm")
    for command in ("squeue", "scontrol"):
        slurm.says(command)
    monkeypatch.setenv("PATH", str(slurm.bin), prepend=":")
    return slurm


@pytest.mark.parametrize(
    ("offered", "cause", "asked"), [(True, "preempted", 0), (False, "preempted", 1), (True, "hang", 1)]
)
def test_it_is_written_down_whoever_does_it(
    offered: bool, cause: str, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_that_requeues(tmp_path, monkeypatch)
    if offered:
        monkeypatch.setenv(REQUEUE_CODE_VARIABLE, "75")
    slurm = SlurmJob("5_2", 0, "alps", ("n1",), 0.0, None)
    run = RunDir(tmp_path)
    append_event(run, "submitted", job_id="5_2", cluster="alps")
    append_event(run, "launched", launch_id=slurm.launch_id, job_id="5_2")
    decision = conclude(run, load_text(JOB).job, slurm, Exit.of(cause, "", 3), 0)
    assert decision.requeue
    assert [words for words in scheduler.calls("scontrol") if words[0] == "requeue"] == [["requeue", "5_2"]] * asked
    assert [event["event"] for event in lines_of(run)[2:]] == ["exited", "requeued"]


@pytest.mark.parametrize(("cause", "is_over"), [("preempted", False), ("requeued", False), ("nan", True)])
def test_a_run_that_goes_back_into_the_queue_is_over_at_no_moment(
    cause: str, is_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler_that_requeues(tmp_path, monkeypatch)
    run, slurm = RunDir(tmp_path), SlurmJob("5", 0, "alps", ("n1",), 0.0, None)
    append_event(run, "submitted", job_id="5", cluster="alps")
    append_event(run, "launched", launch_id=slurm.launch_id, job_id="5")
    seen: list[bool] = []

    def look(*events: object) -> None:
        found = latest_job(run.events())
        seen.append(found is not None and found.is_over)

    after(monkeypatch, "orchestrator.run_directory.rundir.RunDir.append", look)
    conclude(run, load_text(JOB).job, slurm, Exit.of(cause, "", 3), 0)
    assert seen == [is_over]
