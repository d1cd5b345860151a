"""Jobs migrated from scripts that Megatron-LM's own trainer ran (`tests/parity`): its losses, from the same weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from parity.kinds import KINDS, write_data
from parity.records import curves, steps_of
from support.commands import Commands
from support.faults import UNSAVED, Ranks
from support.trained_together import TrainedTogether, selected
from support.training import largest_difference, values

from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.distributed, pytest.mark.slow("a training of each kind of job")]

NEAR = 1e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Path:
    """The data that the trainer had."""
    folder = tmp_path_factory.mktemp("corpus")
    for program in ("pretrain_gpt", "pretrain_bert"):  # a T5's is a BERT's
        said = commands(*write_data(program, folder), cwd=folder, env=os.environ)
        assert said.code == 0, said.err
    return folder


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """The migrated jobs, by their kinds."""
    jobs, written = {}, tmp_path_factory.mktemp("migrated") / "job.yaml"
    for kind in selected(request, "kind"):
        script = KINDS[kind].script
        for flag in ("--data-path ", "--vocab-file "):
            script = script.replace(flag, f"{flag}{folder}/")
        written.write_text(job_text(migrate_script(script, "pretrain.sh")))
        saves_nothing = ["checkpoint.save_interval=null", "checkpoint.keep_every=null"]
        jobs[kind] = load_job([written], ["tracking.mlflow=false", "data.cache_dir=null", *saves_nothing]).job
    return TrainedTogether(ranks, tmp_path_factory.mktemp("runs"), jobs, UNSAVED)


@pytest.mark.parametrize(
    "kind",
    [
        "gpt",
        "gpt-local",
        "llama",
        "scaled-rope",
        "windowed",
        "experts-local",
        "deepseek",
        "gated-delta-net",
        "further-tokens",
        "wsd",
        "ramp-up",
        "bert",
        "t5",
    ],
)
def test_losses_are_those_of_megatron_lm(kind: str, trained: TrainedTogether[str]) -> None:
    run, theirs = trained[kind], steps_of(kind)
    assert len(theirs) >= 14
    for key, curve in curves(theirs).items():
        assert largest_difference(curve, values(run, key)) < NEAR, key
    norms = {step: each["grad_norm"] for step, each in enumerate(theirs, start=1)}
    assert largest_difference(norms, values(run, "train/grad_norm")) < 10 * NEAR
