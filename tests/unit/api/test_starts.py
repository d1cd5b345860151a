"""Runs that a Python program starts, continues and stops: as the commands do, by the same code."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.fake_slurm import FakeSlurm
from support.programs import run_instead

import orchestrator
from orchestrator.cli.main import main
from orchestrator.run_directory.rundir import read_lines
from tests.unit.launch.conftest import fake_runtime, wait_until

__all__ = ["fake_runtime"]

SPEC: dict[str, Any] = {
    "name": "tiny",
    "model": {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 256},
    "batch": {"micro_batch_size": 1, "global_batch_size": 2},
    "data": {"random_tokens": True},
    "optimizer": {"lr": 1e-3},
    "schedule": {"train_iters": 10},
    "precision": {"dtype": "fp32"},
    "checkpoint": {"save_interval": 5},
    "tracking": {"mlflow": False},
    "runtime": {"device": "cpu"},
}


@pytest.fixture
def trains(fake_runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with a training program that takes no time."""
    monkeypatch.chdir(tmp_path)
    run_instead(monkeypatch, fake_runtime, "job.run")


@pytest.mark.usefixtures("trains")
def test_a_job_is_trained_to_its_end_and_its_run_says_how_it_went(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    run = orchestrator.parse_job(SPEC).run(say=said.append)
    assert run.status().state == "completed"
    assert list(run.metrics().index) == list(range(1, 11))
    assert said[0] == f"new run tiny/{run.run_id} in {run.path}"
    assert said[-1].startswith(f"run tiny/{run.run_id} completed at iteration 10 of 10: loss ")
    assert capfd.readouterr() == ("", ""), "nothing is printed"


@pytest.mark.usefixtures("trains")
def test_the_same_job_again_is_the_same_run_and_a_longer_one_goes_on() -> None:
    job, said = orchestrator.parse_job(SPEC), []
    run = job.run()
    assert job.run(say=said.append) == run
    assert "has completed already" in said[-1]
    longer = job.changed({"schedule.train_iters": 12})
    assert longer.run() == run
    assert run.spec().schedule.train_iters == run.status().iteration == 12
    assert longer.run(new=True) != run


@pytest.mark.usefixtures("trains")
def test_another_spec_under_the_same_name_is_refused_as_the_command_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = orchestrator.parse_job(SPEC).run()
    other = orchestrator.parse_job(SPEC, overrides={"optimizer.lr": 0.5})
    with pytest.raises(orchestrator.SpecChanged) as refusal:
        other.run()
    (tmp_path / "job.yaml").write_text(other.text)
    assert main(["run", "job.yaml", "--set=optimizer.lr=0.5"]) == 2
    assert capsys.readouterr().err == f"error: {refusal.value}\n"
    assert orchestrator.runs() == [run]
    with pytest.raises(orchestrator.UserError, match=r"optimizer\.lr would change the course of the training"):
        run.resume({"optimizer.lr": 0.5})
    with pytest.raises(orchestrator.UserError, match="choose one"):
        other.run(new=True, allow_changes=True)


@pytest.mark.usefixtures("trains")
def test_a_run_that_failed_raises_and_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_END", "nan@7")
    job = orchestrator.parse_job(SPEC)
    with pytest.raises(orchestrator.JobError, match="the training diverged"):
        job.run()
    [run] = orchestrator.runs()
    assert run.status().state == "failed"
    monkeypatch.delenv("FAKE_END")
    said: list[str] = []
    run.resume({"schedule.train_iters": 12}, allow_changes=True, say=said.append)
    assert (run.status().state, run.status().iteration) == ("completed", 12)
    assert "schedule.train_iters: 10 -> 12" in said[0]
    metrics = run.metrics()
    assert metrics.index[metrics["resumed"]].tolist() == [6], "the checkpoint before the failure is of step 5"
    assert list(metrics["stage"]) == list(metrics["start"]) == [1] * 5 + [2] * 7
    run.resume(say=said.append)
    assert "has completed already" in said[-1]


@pytest.mark.usefixtures("trains")
def test_a_run_is_stopped_by_another_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAKE_HOLD", f"3:{tmp_path / 'never'}")
    job, ended = orchestrator.parse_job(SPEC), []

    def train() -> None:
        try:
            job.run()
        except orchestrator.JobError as error:
            ended.append(str(error))

    thread = threading.Thread(target=train)
    thread.start()
    wait_until(
        lambda: orchestrator.runs() and len(list(read_lines(orchestrator.runs()[0].path / "metrics.jsonl"))) >= 3
    )
    [run] = orchestrator.runs()
    status = run.stop()
    thread.join(60)
    assert status.state == "stopped"
    assert "stopped at iteration 3 of 10, saved" in ended[0]
    assert run.stop().state == "stopped", "once more changes nothing"


def test_what_cannot_start_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for changes in ({"data": {"blend": [{"path": "nothing"}]}}, {"launch": {"env": {"KEY": "${env:UNSET}"}}}):
        with pytest.raises(orchestrator.UserError):
            orchestrator.parse_job({**SPEC, **changes}).run()
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("trains")
def test_data_are_made_first_and_what_is_wrong_with_them_is_raised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "hello there, this is text"}\n' * 200)
    source = {"path": "made", "text": "text.jsonl"}
    data = {"blend": [source], "split": "1,0,0"}
    model = {**SPEC["model"], "vocab_size": None}
    run = orchestrator.parse_job({**SPEC, "model": model, "data": data}).run()
    assert run.status().state == "completed"
    (tmp_path / "text.jsonl").write_text("no JSON\n")
    data = {**data, "blend": [{**source, "path": "other"}]}
    with pytest.raises(orchestrator.OrchestratorError, match=r"text\.jsonl"):
        orchestrator.parse_job({**SPEC, "name": "other", "model": model, "data": data}).run()
    assert not orchestrator.runs("other")
    assert capfd.readouterr().out == ""


@pytest.fixture
def slurm(lab: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """The cluster's commands."""
    slurm = FakeSlurm(lab / "slurm")
    slurm.says("sbatch", out="77\n")
    slurm.says("squeue", out="")
    monkeypatch.setenv("PATH", f"{slurm.bin}:{os.environ['PATH']}")
    return slurm


def test_a_job_is_submitted(slurm: FakeSlurm, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    run = orchestrator.parse_job(SPEC).submit("lab", say=said.append)
    job = run.status().job
    assert job is not None
    assert (job.job_id, job.cluster) == ("77", "lab")
    assert f"submitted run tiny/{run.run_id} as job 77 on lab; it is in {run.path}" in said
    assert capfd.readouterr() == ("", "")
    slurm.says("sbatch", err="sbatch: error: Invalid account", code=1)
    with pytest.raises(orchestrator.UserError, match="Invalid account"):
        orchestrator.parse_job({**SPEC, "name": "other"}).submit()
    assert [each.name for each in orchestrator.runs()] == ["tiny"]
    with pytest.raises(orchestrator.SpecError):
        orchestrator.parse_job(SPEC).submit("nowhere")


def test_a_job_is_tuned(tmp_path: Path) -> None:
    spec = {
        **SPEC,
        "model": {"preset": "gpt-1.7b"},
        "parallelism": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        "batch": {"micro_batch_size": 1, "global_batch_size": 32},
        "precision": {},
        "runtime": {},
    }
    job = orchestrator.parse_job(spec)
    keep = ["tensor_model_parallel_size", "pipeline_model_parallel_size"]
    tuned = job.tune(gpus=8, gpu="H100", keep=keep)
    steps = [layout.step_seconds for layout in tuned.layouts]
    assert len(steps) > 1
    assert steps == sorted(steps)
    assert (tuned.job.spec.world_size, tuned.job.spec.parallelism.tensor_model_parallel_size) == (8, 2)
    assert tuned.job.spec.optimizer == job.spec.optimizer
    assert tuned.job.plan().forecast.time.step_seconds == pytest.approx(steps[0])
    (tmp_path / "job.yaml").write_text(job.text)
    (tmp_path / "tuned.yaml").write_text(tuned.overlay)
    assert orchestrator.load_job(tmp_path / "job.yaml", tmp_path / "tuned.yaml").spec == tuned.job.spec
    with pytest.raises(orchestrator.UserError, match="no layout of tiny"):
        job.changed({"model.preset": "gpt-70b"}).tune(gpus=1, gpu="H100", keep=keep)
