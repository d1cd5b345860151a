"""The program that hands cells to SLURM is killed before it has written down which jobs they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.event_log import append_to_ledger, lines_of
from support.fake_slurm import FakeSlurm
from support.refusals import fail_at

from orchestrator.executors.slurm.array_program import submit_arrays
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.executor import CellTask
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.request import Array, Request, Task


class Killed(BaseException):
    """In place of SIGKILL."""


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    return sweep_dir("rates", tmp_path)


def tasks(sweep: SweepDir, *cells: str) -> list[Task]:
    """Each leaves a file where it was started."""
    for cell in cells:
        (sweep.runs_dir / cell).mkdir(parents=True, exist_ok=True)
    made = len(sweep.submissions_made())
    return [
        Task(cell, cell, str(run), ["touch", str(run / "begun")], submissions=made)
        for cell in cells
        for run in [sweep.runs_dir / cell]
    ]


def test_cells_whose_runs_know_their_job_are_not_missing(
    sweep: SweepDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm")
    slurm.says("sbatch", "Submitted batch job 12\n")
    monkeypatch.setenv("PATH", str(slurm.bin), prepend=":")
    fail_at(monkeypatch, "orchestrator.sweeps.ledger.SweepDir.append", Killed())
    request = Request(str(sweep.path), [Array({"time": 60}, tasks(sweep, "a", "b"))], cluster="alps")
    with pytest.raises(Killed):
        submit_arrays(request, lambda answer: None)
    known = [lines_of(RunDir(sweep.runs_dir / cell))[-1] for cell in ("a", "b")]
    assert [(event["event"], event["job_id"]) for event in known] == [("submitted", "12_0"), ("submitted", "12_1")]


@pytest.mark.parametrize(("job", "starts"), [("11", False), ("12", True)])
def test_a_cell_that_was_handed_out_again_is_trained_by_the_job_that_is_written_down(
    sweep: SweepDir, monkeypatch: pytest.MonkeyPatch, job: str, starts: bool
) -> None:
    sweep.path.mkdir(parents=True)
    made = {"how": "slurm", "cluster": "alps", "max_parallel": None}
    append_to_ledger(sweep, "submitted", **made, jobs={"a": "7_0"})
    [task] = tasks(sweep, "a")
    append_to_ledger(sweep, "submitted", **made, jobs={"b": "10"})
    append_to_ledger(sweep, "submitted", **made, jobs={"a": "12_1"})
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    for name, value in (("JOB_ID", "13"), ("ARRAY_JOB_ID", job), ("ARRAY_TASK_ID", "1")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    CellTask(str(sweep.path), task)()
    assert (sweep.runs_dir / "a" / "begun").exists() is starts


def test_a_cell_that_starts_before_its_job_is_written_down_is_trained(
    sweep: SweepDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = tasks(sweep, "a")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    CellTask(str(sweep.path), task)()
    assert (sweep.runs_dir / "a" / "begun").exists()
