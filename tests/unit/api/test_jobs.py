"""Jobs and their plans, as a Python program has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.shipped import SHIPPED
from support.training import TINY

import orchestrator
from orchestrator.cli.main import main

JOB = SHIPPED["gpt-1.7b"]


def test_a_plan_says_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    plan = orchestrator.load_job(JOB, overrides={"batch.micro_batch_size": 2}).plan(gpu="H200")
    assert main(["plan", str(JOB), "--set", "batch.micro_batch_size=2", "--gpu", "H200", "--json"]) == 0
    assert json.loads(json.dumps(plan.to_dict())) == json.loads(capsys.readouterr().out)
    assert plan.forecast.device.name == "H200"


def test_overrides_have_values_of_all_kinds() -> None:
    job = orchestrator.load_job(JOB, overrides={"optimizer.lr": 1e-3, "name": "other", "checkpoint.async_save": False})
    assert (job.name, job.spec.optimizer.lr, job.spec.checkpoint.async_save) == ("other", 1e-3, False)


def test_a_job_is_given_as_a_mapping_or_as_text() -> None:
    spec = {"name": "tiny", **TINY}
    by_text = orchestrator.parse_job(json.dumps(spec), overrides={"optimizer.lr": 0.5})
    assert by_text.spec == orchestrator.parse_job({**spec, "optimizer": {"lr": 0.5}}).spec
    assert by_text.plan(gpu="H100").forecast.device.name == "H100"


def test_what_is_wrong_is_what_the_command_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(JOB.read_text() + "\nnothing: 1\nlaunch: {gpus: many}\n")
    with pytest.raises(orchestrator.SpecError) as refusal:
        orchestrator.load_job(wrong)
    assert main(["validate", str(wrong), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.to_dict() for problem in refusal.value.problems] == told


def test_a_target_that_is_unknown_is_refused_when_it_is_planned() -> None:
    job = orchestrator.load_job(JOB)
    with pytest.raises(orchestrator.SpecError):
        job.plan(gpu="H9000")
    with pytest.raises(orchestrator.SpecError):
        job.plan(cluster="nowhere")


def test_a_notebook_shows_a_plan_and_runs_nothing_of_it() -> None:
    model = {**TINY["model"], "vocab_size": 300}
    spec = {"name": "tiny", **TINY, "model": model, "data": {"blend": [{"path": "<script>alert(1)</script>"}]}}
    plan = orchestrator.parse_job(spec).plan(gpu="H200")
    shown = plan._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert all(label in shown for label, _ in plan.rows())
    assert str(plan).splitlines()[0] == "tiny"


def test_a_plan_that_is_stopped_says_so() -> None:
    job = orchestrator.load_job(JOB, overrides={"batch.micro_batch_size": 512, "batch.global_batch_size": 4096})
    with pytest.raises(orchestrator.SpecError):
        job.plan(gpu="H100").require()
