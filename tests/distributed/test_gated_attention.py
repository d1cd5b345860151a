"""A block of its own from its fields to a checkpoint: trained under TP=2, exported, imported, and generated with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.faults import CommandLine, Ranks
from support.training import events, layout, make_run, tiny_job

from orchestrator.errors import SpecError
from orchestrator.planning.parameters import parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

pytestmark = pytest.mark.distributed

LLAMA: dict[str, Any] = {
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "vocab_size": 261,
}


def gated(**sections: Any) -> JobSpec:
    sections = {"schedule": {"train_iters": 3, "lr_warmup_iters": 0}, "checkpoint": {"save_interval": 3}, **sections}
    return tiny_job("gated", model={"num_layers": 2, "vocab_size": 261, **LLAMA, "attention_gate": True}, **sections)


def test_trained_exported_imported_and_generated(ranks: Ranks, orchestrator: CommandLine) -> None:
    job = gated(parallelism=layout(tp=2))
    home = orchestrator.folder
    run = ranks.must_train(make_run(home / "runs", job), job)
    assert len(events(run, "checkpoint_saved")) == 1
    for source, out in ((run.path, "out"), ("imported", "again")):
        said = orchestrator("checkpoint", "export", source, out, "--to", "hf")
        assert said.code == 0, said.err
        if out == "out":
            said = orchestrator("checkpoint", "import", home / "out", "--name", "imported", "-o", "tune.yaml")
            assert said.code == 0, said.err
    assert (home / "out" / "model.safetensors").read_bytes() == (home / "again" / "model.safetensors").read_bytes()
    assert json.loads((home / "out" / "config.json").read_text())["model_type"] == "gated_llama"
    written = [
        json.loads(orchestrator("generate", source, "--prompt", "def", "--temperature", "0", "--json").out)["text"]
        for source in (run.path, "imported")
    ]
    assert written[0] == written[1]


def test_the_plan_counts_the_gate() -> None:
    """A matrix [query width, hidden size] in each layer."""
    job, plain = gated(), tiny_job("plain", model={"num_layers": 2, "vocab_size": 261, **LLAMA})
    model = job.model
    more = model.num_layers * model.hidden_size * model.num_attention_heads * model.head_dim
    assert parameters(job, 512).total - parameters(plain, 512).total == more


def test_what_it_does_not_go_with_is_refused() -> None:
    text = """
name: gated
model: {preset: gpt-tiny, attention_gate: true, vocab_size: 261, lora: {}}
batch: {micro_batch_size: 1, global_batch_size: 1}
data: {random_tokens: true}
schedule: {train_iters: 1}
optimizer: {lr: 1e-3}
"""
    with pytest.raises(SpecError) as refused:
        load_text(text, "job.yaml")
    assert [problem.paths for problem in refused.value.problems] == [("model.lora", "model.attention_gate")]
