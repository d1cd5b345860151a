"""Speculative decoding by a model's own layers of multi-token prediction: texts are those without drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import CommandLine, Ranks
from support.matrix import FAMILIES
from support.training import layout, make_run, tiny_job

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a tiny training, and ranks for each layout")]

HERE = Path(__file__).parent
DRAFTS = 3
LAYOUTS: dict[str, dict[str, Any]] = {"tp2": layout(tp=2, sequence_parallel=True), "pp2": layout(pp=2)}


def job(parallelism: dict[str, Any]) -> JobSpec:
    return tiny_job(
        "drafter",
        model={**FAMILIES["mtp"], "mtp_num_layers": DRAFTS, "vocab_size": 261},
        data={"random_tokens": True, "tokenizer": {"type": "byte_level"}},
        optimizer={"lr": 0.01},
        schedule={"train_iters": 60, "lr_warmup_iters": 2},
        parallelism=parallelism,
    )


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    trained = job(layout())
    folder = make_run(tmp_path_factory.mktemp("runs"), trained)
    return ranks.must_train(folder, trained, inject=HERE / "phrases.py")


def generated(ranks: Ranks, run: RunDir, parallelism: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """What each rank wrote at a layout, by the number of drafts."""
    written = job(parallelism)
    (out / "job.json").write_text(dump_resolved(written))
    arguments, program = (str(out / "job.json"), str(out)), HERE / "speculative_program.py"
    assert ranks.starter.start(run.path, written.world_size, *arguments, program=program).wait() == 0
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(written.world_size)]


@pytest.fixture(scope="module")
def alone(ranks: Ranks, run: RunDir, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = generated(ranks, run, layout(), tmp_path_factory.mktemp("alone"))
    return found


def test_show(alone: dict[str, Any]) -> None:
    Path("/tmp/found.json").write_text(json.dumps(alone))
