"""`orchestrator plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.resources import resource_root

SEED = """\
name: seed
model: {preset: gpt2-large}
parallelism: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2}
batch: {micro_batch_size: 24, num_micro_batches: 2}
data: {random_tokens: true}
optimizer: {lr: 5e-5}
schedule: {train_iters: 490}
"""


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    path = tmp_path / "seed.yaml"
    path.write_text(SEED)
    return path


def test_the_parameters_of_the_seeds_log(orchestrator: Any, seed: Path) -> None:
    finished = orchestrator("plan", seed)
    assert finished.code == 0
    assert "210753280" in finished.out
    assert "209445120" in finished.out
    assert "50,257 tokens, padded to 50,432" in finished.out


def test_json(orchestrator: Any, seed: Path) -> None:
    plan = orchestrator("plan", seed, "--json").json
    counts = {(rank["tp"], rank["pp"]): rank["parameters"] for rank in plan["parameters"]["per_rank"]}
    assert counts == {(0, 0): 210753280, (1, 0): 210753280, (0, 1): 209445120, (1, 1): 209445120}
    assert plan["parameters"]["total"] == 774254080
    assert plan["topology"]["world_size"] == 4
    assert plan["batch"]["global_batch_size"] == 48
    assert plan["steps"] == 490


def test_tables(orchestrator: Any, seed: Path) -> None:
    extra = ("--set", "batch.rampup_batch_size=[24, 24, 1000]", "--set", "launch.gpus_per_node=4")
    out = orchestrator("plan", seed, *extra).out
    for title in ("Plan of seed", "Pipeline stages", "Ranks", "Batch size ramp-up"):
        assert title in out
    assert "18-35" in out
    assert "Data blend" not in out


def test_the_largest_layout_stays_readable(orchestrator: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: large\nmodel: {preset: gpt-462b}\n"
        "parallelism: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 16}\n"
        "batch: {global_batch_size: 3072}\ndata: {random_tokens: true}\noptimizer: {lr: 1e-4}\n"
        "schedule: {train_iters: 100}\nlaunch: {nodes: 768, gpus_per_node: 8}\n"
    )
    finished = orchestrator("plan", job)
    assert finished.code == 0
    assert "of 6144" in finished.out
    assert len(finished.out.splitlines()) < 130
    assert len(orchestrator("plan", job, "--json").json["topology"]["ranks"]) == 6144


def test_names_with_brackets_are_shown_as_they_are(orchestrator: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(SEED.replace("{random_tokens: true}", '{blend: ["data/[bold]x[/bold]"]}'))
    finished = orchestrator("plan", job)
    assert finished.code == 0
    assert "data/[bold]x[/bold]" in finished.out
    assert "not here" in finished.out


@pytest.mark.parametrize("job", sorted(resource_root("jobs").glob("*.yaml")), ids=lambda path: str(path.stem))
def test_every_shipped_job_has_a_plan(orchestrator: Any, job: Path) -> None:
    finished = orchestrator("plan", job)
    assert (finished.code, finished.err) == (0, "")
    assert "Pipeline stages" in finished.out
    assert orchestrator("validate", job, "--json").json["ok"] is True
