"""A checkpoint of one layout goes on at any other, with its optimizer: on the fly, and written anew for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import WEIGHTS_ALONE, CommandLine, Ranks
from support.trained_together import TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.checkpoints.commit_markers import file_record, read_commit, verify, write_commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.self_contained_checkpoints import JOB_FILE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a training goes on at each of several layouts")]

HALF, WHOLE = 2, 4
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp4": layout(dp=4),
    "tp4": layout(tp=4, sequence_parallel=True),
    "pp4": layout(pp=4),
    "pp2-vp2": layout(pp=2, vp=2),
}


def job_at(parallelism: dict[str, Any]) -> JobSpec:
    """Gated, with an output layer of its own and a vocabulary whose padding depends on TP."""
    return tiny_job(
        "reshaped",
        batch={"micro_batch_size": 8 // max(2, parallelism["data_parallel_size"])},
        model={"num_layers": 4, "activation": "swiglu", "untie_embeddings_and_output_weights": True},
        schedule={"train_iters": WHOLE},
        checkpoint={"save_interval": HALF, "keep_last": 5},
        parallelism=parallelism,
    )


@pytest.fixture(scope="module")
def whole(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Never interrupted, under TP=2 and PP=2."""
    job = job_at(layout(tp=2, pp=2))
    return ranks.must_train(make_run(tmp_path_factory.mktemp("whole"), job), job, inject=WEIGHTS_ALONE)


def second_half(run: RunDir) -> dict[int, float]:
    return {step: loss for step, loss in losses(run).items() if step > HALF}


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, ranks: Ranks, whole: RunDir, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """Runs that begin with its checkpoint, at their layouts."""
    jobs = {name: job_at(LAYOUTS[name]) for name in selected(request, "name")}
    trained = TrainedTogether(ranks, tmp_path_factory.mktemp("resumed"), jobs, WEIGHTS_ALONE)
    for name in jobs:
        shutil.copytree(whole.checkpoint(HALF), trained.run_of(name).checkpoint(HALF))
    return trained


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_resume_goes_on_at_another_layout(name: str, whole: RunDir, resumed: TrainedTogether[str]) -> None:
    run = resumed[name]
    assert [event["iteration"] for event in events(run, "resumed")] == [HALF]
    difference = largest_difference(second_half(whole), losses(run))
    print(f"largest relative difference {difference:.1e}")
    assert difference < 1e-5, "in fp32 it is about 1e-7; 1e-4 is promised"
    assert weights_apart(whole, run) == {}


def test_a_checkpoint_alone_is_written_for_another_layout(
    ranks: Ranks, orchestrator: CommandLine, whole: RunDir, tmp_path: Path
) -> None:
    """Copied away from its run and reshaped by the command: every tensor is the same, in the parts of the new ranks,
    and the run that it becomes goes on with its optimizer.
    """
    alone = shutil.copytree(whole.checkpoint(HALF), tmp_path / "alone")
    said = orchestrator("checkpoint", "reshape", alone, "--tp", "4", "--pp", "1", "--json")
    assert said.code == 0, said.err
    answer = json.loads(said.out)
    verdicts = {finding["what"]: finding["verdict"] for finding in answer["findings"]}
    assert set(verdicts.values()) == {"fine"}
    assert verdicts.keys() >= {"parallelism.tensor_model_parallel_size", "optimizer state", "padded vocabulary"}
    run = RunDir(Path(answer["run"]))
    target = run.checkpoint(HALF)
    assert verify(target) == []
    before, after = StoredWeights(alone), StoredWeights(target)
    assert before.keys() == after.keys()
    assert before.objects() == after.objects()
    for key in before.keys():  # noqa: SIM118 - it is no mapping
        assert torch.equal(before.read(key, ()), after.read(key, ())), key
    parts = {tuple(chunk.sizes) for chunk in after.chunks("decoder.layers.self_attention.linear_proj.weight")}
    assert parts == {(1, 32, 8)}
    job = load_resolved(run.resolved())
    assert job.world_size == 4
    ranks.must_train(run, job, inject=WEIGHTS_ALONE)
    assert largest_difference(second_half(whole), losses(run)) < 1e-5
    assert weights_apart(whole, run) == {}


def test_what_a_checkpoint_alone_does_not_bring_along_is_said(
    orchestrator: CommandLine, whole: RunDir, tmp_path: Path
) -> None:
    """And that the job's name means another run."""
    alone = shutil.copytree(whole.checkpoint(HALF), tmp_path / "alone")
    job = tiny_job(**{**load_resolved(whole.resolved()).model_dump(), "tracking": {"mlflow": True}})
    (alone / JOB_FILE).write_text(dump_resolved(job))
    commit = read_commit(alone)
    assert commit is not None
    files = {**commit.files, JOB_FILE: file_record(alone / JOB_FILE)}
    write_commit(alone, iteration=HALF, consumed_samples=commit.consumed_samples, files=files, **commit.details)
    command = "checkpoint", "reshape", alone, "--tp", "1"
    said = orchestrator(*command)
    assert said.code == 0, said.err
    assert "\nnot taken from a checkpoint named by its folder (set it with --set or --to):\n" in said.out
    assert "\n  tracking.mlflow: True -> False\nwrote run" in said.out
    assert "names this run" not in said.out
    first = orchestrator.run()
    said = orchestrator(*command, "--set", "tracking.mlflow=true")
    assert said.code == 0, said.err
    assert "not taken from a checkpoint" not in said.out
    assert f"reshaped names this run from now on; the one before is {first.run_id}\n" in said.out
    found = json.loads(orchestrator(*command, "--dry-run", "--json").out)
    assert found["left_behind"] == {"tracking.mlflow": True}
    assert (
        "not taken from a checkpoint"
        not in orchestrator("checkpoint", "reshape", whole.path, "--tp", "1", "--dry-run").out
    )


def test_what_cannot_go_on_is_said_before_anything_is_written(
    orchestrator: CommandLine, whole: RunDir, tmp_path: Path
) -> None:
    def refusal(*arguments: str | Path) -> str:
        said = orchestrator("checkpoint", "reshape", whole.path, *arguments)
        assert said.code == 2, said.err
        assert "Traceback" not in said.err
        return said.out + said.err

    assert "num_attention_heads / TP must be whole: 4 / 3" in refusal("--tp", "3")
    said = refusal("--set", "model.hidden_size=128", "--dry-run")
    assert "this checkpoint cannot continue like this:\n      model.hidden_size" in said
    assert "add --allow-changes" in refusal("--set", "optimizer.lr=0.1", "-o", "out")
    (tmp_path / "there").mkdir()
    assert "already exists" in refusal("-o", "there")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
