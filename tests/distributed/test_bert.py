"""BERT on real text: it learns, its losses are those of one process at every layout, and it resumes as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faults import UNSAVED, CommandLine, Ranks
from support.trained_together import TrainedTogether, selected
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

STEPS = 4
MODEL: dict[str, Any] = {
    **{"architecture": "bert", "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 48},
    **{"position_embedding_type": "learned_absolute", "vocab_size": 300},
}


def bert_job(name: str, prefix: str, **sections: Any) -> JobSpec:
    given = {
        "data": {"blend": [{"path": prefix}], "random_tokens": False, "split": "90,10,0"},
        "schedule": {"train_iters": STEPS, "lr_warmup_iters": 1},
        "evaluation": {"eval_interval": STEPS, "eval_iters": 2},
        "batch": {"micro_batch_size": 4},
        **sections,
    }
    return tiny_job(name, **{**given, "model": {**MODEL, **sections.get("model", {})}})


RECOMPUTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tp2": (layout(tp=2), {"recompute_granularity": "selective"}),
    "pp2": (layout(pp=2), {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
}
"""Layouts, and what is recomputed there, which changes no loss."""
KEYS = ("loss", "loss/lm", "loss/order")


def recomputing_job(name: str, prefix: str) -> JobSpec:
    parallelism, runtime = RECOMPUTED[name]
    return bert_job(name, prefix, parallelism=parallelism, runtime=runtime)


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, real_sentences: str, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """One process's run and that of each layout."""
    jobs = {"one": bert_job("one", real_sentences)}
    jobs |= {name: recomputing_job(name, real_sentences) for name in selected(request, "name")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, UNSAVED)


@pytest.fixture(scope="module")
def reference(trained: TrainedTogether[str]) -> RunDir:
    return trained["one"]


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputation(name: str, trained: TrainedTogether[str], reference: RunDir, real_sentences: str) -> None:
    job, run = recomputing_job(name, real_sentences), trained[name]
    for key in (*(f"train/{key}" for key in KEYS), *(f"validation/{key}" for key in KEYS)):
        assert largest_difference(values(reference, key), values(run, key)) < 1e-5, key
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
    [started] = events(run, "started")
    first = parameters(job, vocabulary(job).padded_size).per_rank[0]
    assert started["parameters"] == first.parameters


def stopped_and_resumed(before: JobSpec, after: JobSpec, ranks: Ranks, folder: Path, *others: RunDir) -> RunDir:
    """A run that is asked to stop before its first step, and goes on as `after` from the checkpoint that it leaves.
    `others` are trained in the processes of its first start.
    """
    run = make_run(folder, before)
    run.stop_file.write_text('{"by": "the test"}')
    ranks.train_several([*others, run], before.world_size)
    assert 0 < max(losses(run)) < STEPS
    run.stop_file.unlink()
    make_run(folder, after)
    return ranks.must_train(run, after, launch_id="second")


def test_resumption_is_bitwise_and_generates_nothing(
    ranks: Ranks, real_sentences: str, orchestrator: CommandLine, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        "model": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
        "parallelism": layout(tp=2),
        "data": {**bert_job("data", real_sentences).data.model_dump(), "bert_order": "next_sentence"},
    }
    job = bert_job("bitwise", real_sentences, **sections)
    whole = make_run(tmp_path / "whole", job)
    run = stopped_and_resumed(job, job, ranks, tmp_path / "runs", whole)
    assert losses(run) == losses(whole)
    assert len(losses(whole)) == STEPS
    said = orchestrator("generate", run.path, "--prompt", "x")
    assert said.code == 2
    assert "BERT predicts masked tokens" in said.err


def test_resumed_at_another_layout(ranks: Ranks, reference: RunDir, real_sentences: str, tmp_path: Path) -> None:
    before = bert_job("moved", real_sentences, parallelism=layout(tp=2, sequence_parallel=True))
    after = bert_job("moved", real_sentences, parallelism=layout(pp=2))
    run = stopped_and_resumed(before, after, ranks, tmp_path)
    assert largest_difference(losses(reference), losses(run)) < 1e-5


def test_it_learns(ranks: Ranks, real_sentences: str, tmp_path: Path) -> None:
    """On bytes of the standard library the loss of masked tokens falls by more than two, below what the bytes'
    frequencies alone give: it reads what stands around them."""
    job = bert_job(
        "learner",
        real_sentences,
        model={
            **{"num_layers": 1, "hidden_size": 64, "seq_length": 64, "position_embedding_type": "rope"},
            **{"vocab_size": None, "init_method_std": 0.1},
        },
        batch={"micro_batch_size": 16, "global_batch_size": 16},
        optimizer={"lr": 5e-3},
        schedule={"train_iters": 250, "lr_warmup_iters": 10},
        evaluation={"eval_interval": 250, "eval_iters": 8, "eval_at_start": True},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    curve = values(run, "validation/loss/lm")
    tokens = np.bincount(np.fromfile(f"{real_sentences}.bin", dtype="<u2"))
    shares = tokens[tokens > 0] / tokens.sum()
    entropy = -float((shares * np.log(shares)).sum())
    assert 5.4 < curve[0] < 6, "before the first step it is near ln(261) = 5.56"
    assert curve[250] < min(curve[0] - 2, entropy - 0.1)
