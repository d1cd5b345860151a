"""A T5 writes what its decoder makes of its encoder's input, with a cache, at every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import CommandLine, Ranks
from support.trained_together import TrainedTogether
from support.training import layout, tiny_job

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("three tiny trainings, and ranks for each layout")]

MODEL: dict[str, Any] = {
    **{"architecture": "t5", "num_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 320},
    **{"seq_length": 64, "decoder_seq_length": 32, "position_embedding_type": "relative"},
    **{"relative_attention_max_distance": 32, "normalization": "RMSNorm", "add_bias_linear": False},
}
BY_THEMSELVES = ("recomputed", "drawn alone", "beams alone")
"""What one rank writes for each prompt alone or without a cache: the same as the rest, which is compared at layouts."""


def t5_job(name: str, degrees: dict[str, Any], **model: Any) -> JobSpec:
    return tiny_job(
        name,
        **{"model": {**MODEL, **model}, "parallelism": degrees, "schedule": {"train_iters": 3}},
        **{"optimizer": {"lr": 0.1}, "data": {"random_tokens": True, "tokenizer": {"type": "byte_level"}}},
    )


POSITIONS = ("relative", "rope", "learned_absolute")


@pytest.fixture(scope="module")
def trained(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[str]:
    """By the kind of positions."""
    jobs = {kind: t5_job("one", layout(), position_embedding_type=kind) for kind in POSITIONS}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs)


def written(ranks: Ranks, run: RunDir, job: JobSpec, out: Path) -> list[dict[str, Any]]:
    """What each rank writes at the layout of a job."""
    out.mkdir()
    (out / "job.json").write_text(dump_resolved(job))
    program = Path(__file__).with_name("conditional_program.py")
    started = ranks.starter.start(run.path, job.world_size, str(out / "job.json"), str(out), program=program)
    assert started.wait() == 0
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(job.world_size)]


@pytest.fixture(scope="module")
def run(trained: TrainedTogether[str]) -> RunDir:
    return trained["relative"]


@pytest.fixture(scope="module")
def alone(ranks: Ranks, run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = written(ranks, run, t5_job("one", layout()), tmp_path_factory.mktemp("alone") / "out")
    return found


def check(found: dict[str, Any]) -> None:
    assert found["cached"] == found["recomputed"]
    assert found["same"]
    assert found["drawn"] == found["drawn alone"]
    assert found["beams"] == found["beams alone"]
    assert len({tuple(row) for row in found["cached"]}) > 1, "the prompts matter"
    assert (found["shape"], found["padding"], found["encoder"]) == ([2, 2, 320], True, True)
    assert "as many lists of encoder_tokens" in found["refusal"]


def test_the_cache_and_the_batch_change_nothing(alone: dict[str, Any]) -> None:
    check(alone)
    assert alone["beams"] != alone["cached"]


@pytest.mark.parametrize("degrees", [{"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"pp": 4}], ids=str)
def test_other_layouts_write_the_same(
    ranks: Ranks, run: RunDir, alone: dict[str, Any], degrees: dict[str, Any], tmp_path: Path
) -> None:
    together = {name: said for name, said in alone.items() if name not in BY_THEMSELVES}
    for rank in written(ranks, run, t5_job("split", layout(**degrees)), tmp_path / "out"):
        assert rank == together


@pytest.mark.parametrize("positions", POSITIONS[1:])
def test_other_positions(ranks: Ranks, trained: TrainedTogether[str], positions: str, tmp_path: Path) -> None:
    job = t5_job("one", layout(), position_embedding_type=positions)
    [found] = written(ranks, trained[positions], job, tmp_path / "out")
    check(found)


def test_the_command(orchestrator: CommandLine, run: RunDir) -> None:
    said = orchestrator("generate", run.path, "--prompt", "x", "--max-new-tokens", "3", "--temperature", "0", "--json")
    assert said.code == 0, said.err
    assert len(json.loads(said.out)["tokens"]) == 3
