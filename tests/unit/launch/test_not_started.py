"""A new run that could not be started leaves nothing that would stand for its job's latest run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_slurm import FakeSlurm

from orchestrator.launch.runs import all_runs, create_run, find_run
from orchestrator.spec.job import JobSpec

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]

NO_SLURM = "sbatch: error: s_p_parse_file: unable to status file /etc/slurm/slurm.conf: No such file or directory"
NO_ANSWER = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.mark.parametrize("detach", [(), ("--detach",)])
@pytest.mark.parametrize("wrong", ["launch.template=nope.j2", "launch.python=/nope/py"])
def test_a_run_that_cannot_be_started_here(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    job_file: Path,
    runs_dir: Path,
    wrong: str,
    detach: tuple[str, ...],
) -> None:
    good = create_run(make_job(), "", runs_dir)
    code, _, err = orchestrator("run", job_file, "--set", wrong, *detach)
    assert (code, wrong.partition("=")[2] in err) == (2, True)
    assert all_runs(runs_dir) == [good]
    assert find_run("tiny", runs_dir) == good


def test_a_run_that_was_there_before_stays(
    orchestrator: Orchestrator, make_job: MakeJob, tmp_path: Path, runs_dir: Path
) -> None:
    job = make_job(launch__python="/nope/py")
    run = create_run(job, "", runs_dir)
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    assert orchestrator("run", tmp_path / "job.yaml")[0] == 2
    assert all_runs(runs_dir) == [run]


@pytest.mark.parametrize(("words", "runs_left"), [(NO_SLURM, 0), (NO_ANSWER, 1)])
def test_only_what_may_be_in_the_queue_stays_after_a_failed_submission(
    orchestrator: Orchestrator,
    job_file: Path,
    runs_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    runs_left: int,
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm")
    slurm.says("sbatch", err=f"{words}\n", code=1)
    monkeypatch.setenv("PATH", str(slurm.bin))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "lab.yaml").write_text("name: lab\ntime: 1h\n")
    code, _, err = orchestrator("submit", job_file)
    assert (code, "may be in the queue" in err) == (1, bool(runs_left))
    assert len(all_runs(runs_dir)) == runs_left
