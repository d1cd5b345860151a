"""BERT and T5 out to Megatron-LM and back in: the same losses of its own classes, weights, optimizer and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import CommandLine, Ranks
from support.training import events, largest_difference, layout, losses, make_run, tiny_job

from orchestrator.conversion.megatron.arguments import to_model
from orchestrator.conversion.shapes import weights_of
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.models.registry import FAMILIES
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.spec.model import ModelSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains, converts with the commands, and trains again")]

PROGRAM = Path(__file__).parent / "megatron_bert_and_t5_program.py"
HALF, WHOLE = 2, 4
_SIZES = {"num_layers": 2, "hidden_size": 48, "seq_length": 24, "position_embedding_type": "learned_absolute"}
# 256 tokens are no row too many: Megatron-LM's networks give padding some probability, and ours none.
MODELS: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "architecture": "bert", "vocab_size": 256},
    "t5": {**_SIZES, "architecture": "t5", "decoder_seq_length": 16, "vocab_size": 256, "add_output_bias": True},
}


def job_of(family: str, parallelism: dict[str, Any]) -> JobSpec:
    return tiny_job(
        "model",
        model=MODELS[family],
        optimizer={"lr": 1e-2},
        schedule={"train_iters": WHOLE, "lr_warmup_iters": 1},
        checkpoint={"save_interval": HALF, "keep_last": 5},
        parallelism=parallelism,
    )


@pytest.mark.parametrize("family", MODELS)
def test_there_and_back(family: str, ranks: Ranks, orchestrator: CommandLine, tmp_path: Path) -> None:
    """Exported, loaded and saved at TP 2 as Megatron-LM does, imported with the job by the command, gone on with at
    DP 2: the losses are those of the run that was left alone.
    """
    job = job_of(family, layout())
    whole = ranks.must_train(make_run(tmp_path / "whole", job), job)
    said = orchestrator("checkpoint", "export", whole.checkpoint(HALF), "out", "--to", "megatron-lm")
    assert said.code == 0, said.err
    resolved = tmp_path / "tp2.json"
    resolved.write_text(dump_resolved(job_of(family, layout(tp=2))))
    theirs = tmp_path / "theirs"
    places = map(str, (theirs, resolved, whole.checkpoint(HALF), tmp_path / "found.pt"))
    started = ranks.starter.start(orchestrator.folder / "out", 2, *places, program=PROGRAM)
    assert started.wait() == 0
    found = torch.load(tmp_path / "found.pt")
    assert found["ours"].std() > 0.01
    assert torch.allclose(found["theirs"], found["ours"], atol=1e-5)

    then = job_of(family, layout(dp=2))
    said = orchestrator("checkpoint", "import", theirs, "--job", orchestrator.write(then), "--json")
    assert said.code == 0, said.err
    answer = json.loads(said.out)
    assert (answer["iteration"], answer["optimizer"]) == (HALF, True)
    run = RunDir(Path(answer["run"]))
    before, after = StoredWeights(whole.checkpoint(HALF)), StoredWeights(run.checkpoint(HALF))
    assert before.keys() == after.keys()
    for key in before.keys():  # noqa: SIM118 - it is no mapping
        assert torch.equal(before.read(key, ()), after.read(key, ())), key
    weights = weights_of(job.model, 256)
    assert {key: before.shape(key) for key in before.keys() if not key.startswith("optimizer.")} == weights  # noqa: SIM118
    said = orchestrator("resume", run.run_id)
    assert said.code == 0, said.out + said.err
    assert [event["iteration"] for event in events(run, "resumed")] == [HALF]
    expected = {step: loss for step, loss in losses(whole).items() if step > HALF}
    assert largest_difference(expected, losses(run)) < 1e-5

    model = ModelSpec.model_validate(to_model(found["args"], FAMILIES[family]))
    for name, value in MODELS[family].items():
        assert name == "vocab_size" or getattr(model, name) == value, name
