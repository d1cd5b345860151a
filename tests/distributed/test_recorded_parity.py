"""Jobs migrated from scripts that Megatron-LM's own trainer ran (`tests/parity`): its losses, from the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parity.kinds import KINDS, corpus
from parity.records import steps_of
from support.faults import Ranks
from support.fixtures import tokenize
from support.training import largest_difference, losses, make_run, values

from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.writing import job_text
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a training of each kind of job")]

NEAR = 1e-6


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data that the trainer had."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = folder / "corpus.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in corpus()))
    return tokenize([texts], folder / "corpus", "--append-eod")


@pytest.mark.parametrize(
    "kind", ["gpt", "gpt-local", "llama", "scaled-rope", "windowed", "experts-local", "wsd", "ramp-up"]
)
def test_losses_are_those_of_megatron_lm(kind: str, prefix: str, ranks: Ranks, tmp_path: Path) -> None:
    script = KINDS[kind].script.replace("--data-path corpus", f"--data-path {prefix}")
    written = tmp_path / "job.yaml"
    written.write_text(job_text(migrate_script(script, "pretrain.sh")))
    changes = ["tracking.mlflow=false", "data.cache_dir=null"]
    job = load_job([written], changes).job
    run = ranks.must_train(make_run(tmp_path, job), job)
    theirs = dict(enumerate(steps_of(kind), start=1))
    assert len(theirs) >= 14
    assert largest_difference({step: each["loss"] for step, each in theirs.items()}, losses(run)) < NEAR
    norms = {step: each["grad_norm"] for step, each in theirs.items()}
    assert largest_difference(norms, values(run, "train/grad_norm")) < 10 * NEAR
