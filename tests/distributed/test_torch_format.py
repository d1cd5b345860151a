"""Megatron-LM's older checkpoints as runs: what transformers' networks say of the same weights, and training on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.examples import write_mnli
from support.faults import UNSAVED, CommandLine, Ranks
from support.rank_files import Network, write
from support.training import events, largest_difference, layout, losses, make_run, tiny_job

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [pytest.mark.distributed, pytest.mark.slow("imports with the commands, generates and trains")]

PROGRAM = Path(__file__).parent / "torch_format_program.py"
TESTS = Path(__file__).parents[1]


def test_logits_are_those_of_transformers(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32, of weights in fp16: GPT with each GeLU, BERT with its heads; several layouts, each order."""
    monkeypatch.setenv("FORKED_TOO", "support.rank_networks")
    ranks.program(TESTS, "support.rank_networks", tmp_path)
    started = ranks.starter.start(
        tmp_path, 1, "one", "1", "1", program=TESTS / "unit" / "conversion" / "layout_program.py"
    )
    assert started.wait() == 0
    cases = sorted(path.parent.name for path in tmp_path.glob("*/logits.pt"))
    assert len(cases) == 5
    for case in cases:
        theirs, ours = (torch.load(tmp_path / case / name) for name in ("logits.pt", "ours.pt"))
        assert theirs.std() > 0.1, f"{case}: logits that say something"
        assert (ours.reshape(theirs.shape) - theirs).abs().max() < 1e-5 * max(float(theirs.std()), 1.0), case


HALF, WHOLE = 2, 4


def job_at(parallelism: dict[str, Any], dtype: str) -> JobSpec:
    return tiny_job(
        "model",
        model={"position_embedding_type": "learned_absolute", "vocab_size": 256},
        schedule={"train_iters": WHOLE},
        checkpoint={"save_interval": HALF, "keep_last": 5},
        parallelism=parallelism,
        precision={"dtype": dtype},
    )


@pytest.mark.parametrize(
    ("dtype", "distributed", "there"),
    [("bf16", False, layout(tp=2)), ("fp32", False, layout(pp=2)), ("bf16", True, layout(dp=2))],
    ids=["bf16-tp2", "fp32-pp2", "bf16-distributed-dp2"],
)
def test_training_goes_on_from_what_megatron_saves(
    dtype: str, distributed: bool, there: dict[str, Any], ranks: Ranks, orchestrator: CommandLine, tmp_path: Path
) -> None:
    """megatron-core's optimizer saved as a pickle per rank, imported with the job: every tensor is the run's that was
    left alone, and so are the losses after it.
    """
    kind = {"use_distributed_optimizer": distributed}
    job = job_at(layout(**kind), dtype)
    whole = ranks.must_train(make_run(tmp_path / "whole", job), job)
    resolved, theirs = tmp_path / "there.json", tmp_path / "theirs"
    resolved.write_text(dump_resolved(job_at({**there, **kind}, dtype)))
    started = ranks.starter.start(whole.checkpoint(HALF), 2, str(resolved), str(theirs), program=PROGRAM)
    assert started.wait() == 0
    said = orchestrator("checkpoint", "import", theirs, "--job", orchestrator.write(job), "--json")
    assert said.code == 0, said.err
    answer = json.loads(said.out)
    assert (answer["iteration"], answer["optimizer"]) == (HALF, True), said.err
    run = RunDir(Path(answer["run"]))
    before, after = StoredWeights(whole.checkpoint(HALF)), StoredWeights(run.checkpoint(HALF))
    assert before.keys() == after.keys()
    for key in before.keys():  # noqa: SIM118 - it is no mapping
        assert torch.equal(before.read(key, ()), after.read(key, ())), key
    said = orchestrator("resume", run.run_id)
    assert said.code == 0, said.out + said.err
    expected = {step: loss for step, loss in losses(whole).items() if step > HALF}
    assert largest_difference(expected, losses(run)) == 0


MODEL: dict[str, Any] = {
    **{"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32},
    "position_embedding_type": "learned_absolute",
}


def imported(orchestrator: CommandLine, folder: Path, job: JobSpec) -> str:
    """The run that the command makes of a published file, which has no arguments: the job says what it is."""
    (folder / "latest_checkpointed_iteration.txt").write_text("release\n")
    said = orchestrator("checkpoint", "import", folder)
    assert (said.code, said.out) == (2, "")
    assert "give the job with --job" in said.err
    said = orchestrator("checkpoint", "import", folder, "--job", orchestrator.write(job), "--json")
    assert said.code == 0, said.err
    assert "a release has none" in said.err
    return str(json.loads(said.out)["run_id"])


def test_a_published_gpt_generates(orchestrator: CommandLine, tmp_path: Path) -> None:
    """As GPT-345M is: a pickle without zip, arguments or version; its queries, keys and values are not interleaved."""
    write(tmp_path / "gpt" / "release", Network.random(), version=None, older=True, zipped=False)
    tokenizer = {"random_tokens": True, "tokenizer": {"type": "byte_level"}}
    job = tiny_job("gpt", model={**MODEL, "vocab_size": 256}, data=tokenizer, precision={"dtype": "fp16"})
    run = imported(orchestrator, tmp_path / "gpt", job)
    said = orchestrator("generate", run, "--prompt", "Hello", "--max-new-tokens", "4", "--json")
    assert said.code == 0, said.err


def test_a_published_bert_is_tuned_on_mnli(ranks: Ranks, orchestrator: CommandLine, tmp_path: Path) -> None:
    """From the weights of both ranks, with a fresh head."""
    model = {**MODEL, "architecture": "bert", "vocab_size": 300}
    write(tmp_path / "bert" / "release", Network.random(bert=True, rows=384), tp=2, version=None, older=True)
    job = tiny_job("bert", model=model, precision={"dtype": "fp16"})
    source = RunDir(tmp_path / "runs" / "bert" / imported(orchestrator, tmp_path / "bert", job))
    tuned = tiny_job(
        "tuned",
        model=model,
        task={"name": "mnli", "train": str(write_mnli(tmp_path / "train.tsv", 30))},
        data={"random_tokens": False},
        checkpoint={"pretrained": str(source.path)},
        schedule={"train_iters": 3, "lr_warmup_iters": 0},
        parallelism=layout(tp=2),
    )
    run = ranks.must_train(make_run(tmp_path / "tuned", tuned), tuned, inject=UNSAVED)
    [pretrained] = events(run, "pretrained")
    assert pretrained["fresh"]
    assert len(losses(run)) == 3
