"""T5: the same losses at every layout, checkpoints across layouts, a loss that falls, an encoder that is used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.fixtures import tokenized
from support.trained_together import TrainedTogether, selected
from support.trained_weights import BITWISE, weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

STEPS = 2
MODEL: dict[str, Any] = {
    **{"architecture": "t5", "num_layers": 2, "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 320},
    **{"seq_length": 64, "decoder_seq_length": 32, "position_embedding_type": "relative"},
    **{"relative_attention_max_distance": 32, "normalization": "RMSNorm", "add_bias_linear": False},
}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prefix of an indexed data set of sentences: a package of Python's standard library, as bytes."""
    return tokenized("json", tmp_path_factory.mktemp("text") / "json", "--split-sentences")


def t5_job(name: str, prefix: str, **sections: Any) -> JobSpec:
    data = {
        "blend": [{"path": prefix}],
        "random_tokens": False,
        "split": "60,40,0",
        "tokenizer": {"vocab_extra_ids": 20},
    }
    given = {
        "data": data,
        "optimizer": {"lr": 3e-3},
        "schedule": {"train_iters": STEPS, "lr_warmup_iters": 0},
        "batch": {"micro_batch_size": 4},
        **sections,
    }
    return tiny_job(name, **{**given, "model": {**MODEL, **sections.get("model", {})}})


RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2-sp": {"parallelism": layout(tp=2, sequence_parallel=True), "runtime": {"recompute_granularity": "selective"}},
    "pp2": {"parallelism": layout(pp=2), "runtime": RECOMPUTED},
    "pp4": {"parallelism": layout(pp=4), "checkpoint": {"save_interval": STEPS // 2}},
}


POSITIONS = ("learned_absolute", "rope")
SHORT: dict[str, Any] = {"schedule": {"train_iters": 3, "lr_warmup_iters": 1}, "optimizer": {"lr": 1e-2}}
MEANS = {"micro_batch_size": 2, "calculate_per_token_loss": False}
OTHER_MEANS: dict[str, dict[str, Any]] = {
    "means-one": {"batch": MEANS, **SHORT},
    "means-two": {"batch": MEANS, "parallelism": layout(dp=2), **SHORT},
    "per-token": {"batch": {"micro_batch_size": 2}, **SHORT},
}
Trained = TrainedTogether[str]


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, sentences: str, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    """The reference in one process, each layout's run, and those of other positions and means. What goes on does so
    from their middle.
    """
    sections = {"one": {"checkpoint": {"save_interval": STEPS // 2}}, **OTHER_MEANS}
    sections |= {name: LAYOUTS[name] for name in selected(request, "name")}
    for positions in selected(request, "positions"):
        model = {"position_embedding_type": positions, "normalization": "LayerNorm", "add_bias_linear": True}
        sections |= {f"{positions}-{pp}": {"model": model, "parallelism": layout(pp=pp)} for pp in (1, 2)}
    jobs = {name: t5_job(name, sentences, **each) for name, each in sections.items()}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("trained"), jobs, WEIGHTS_ALONE)


@pytest.fixture(scope="module")
def reference(trained: Trained) -> RunDir:
    return trained["one"]


def rest_from(start: RunDir, ranks: Ranks, job: JobSpec, folder: Path) -> RunDir:
    """The second half of a training, from a checkpoint of another run at its half."""
    run = make_run(folder, job)
    half = start.checkpoint(STEPS // 2)
    shutil.copytree(half, run.checkpoints / half.name)
    return ranks.must_train(run, job, inject=WEIGHTS_ALONE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name: str, ranks: Ranks, trained: Trained, reference: RunDir, sentences: str, tmp_path: Path) -> None:
    """The encoder on the first stages, the decoder on the others; with recomputation. Without: test_matrix.py."""
    job, run = t5_job(name, sentences, **LAYOUTS[name]), trained[name]
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4
    # Every stage of a half has a copy, and gradients of all of them are summed. Losses do not tell, so early.
    ours, alone = (StoredWeights(each.checkpoint(STEPS)) for each in (run, reference))
    for half in ("encoder", "decoder"):
        key = f"{half}_relative_attention_bias.weight"
        torch.testing.assert_close(ours.read(key, ()), alone.read(key, ()), rtol=0, atol=1e-6)
    assert weights_apart(reference, run) == {}
    [started] = events(run, "started")
    planned = parameters(job, vocabulary(job).padded_size)
    assert started["parameters"] == planned.per_rank[0].parameters
    if name == "pp4":
        again = t5_job("again", sentences, parallelism=layout(tp=2))
        rest = rest_from(run, ranks, again, tmp_path)
        second_half = {step: loss for step, loss in losses(reference).items() if step > STEPS // 2}
        assert largest_difference(second_half, losses(rest)) < 1e-5
        assert weights_apart(reference, rest) == {}


def test_resume_is_bitwise(ranks: Ranks, reference: RunDir, sentences: str, tmp_path: Path) -> None:
    rest = rest_from(reference, ranks, t5_job("one", sentences), tmp_path)
    expected = losses(reference)
    assert losses(rest) == {step: expected[step] for step in range(STEPS // 2 + 1, STEPS + 1)}
    assert weights_apart(reference, rest, BITWISE) == {}


@pytest.mark.parametrize("positions", POSITIONS)
def test_other_positions(positions: str, trained: Trained) -> None:
    one, two = (trained[f"{positions}-{pp}"] for pp in (1, 2))
    assert largest_difference(losses(one), losses(two)) < 1e-5
    assert weights_apart(one, two) == {}


def test_means_of_micro_batches(trained: Trained) -> None:
    """As Megatron-LM has it without --calculate-per-token-loss: the same over two replicas, and another training than
    with a loss per token, whose first loss it reports all the same.
    """
    one, two, per_token = (trained[name] for name in OTHER_MEANS)
    assert largest_difference(losses(one), losses(two)) < 1e-5
    assert weights_apart(one, two) == {}
    assert losses(one)[1] == pytest.approx(losses(per_token)[1], rel=1e-6)
    assert largest_difference(losses(one), losses(per_token)) > 1e-4


def test_random_tokens(ranks: Ranks, tmp_path: Path) -> None:
    """For benchmarks: every token of both inputs counts, so the loss begins at ln of the vocabulary."""
    job = tiny_job("random", model=MODEL, schedule={"train_iters": 2, "lr_warmup_iters": 1})
    assert 5.6 < ranks.losses_of(job, tmp_path)[1] < 6.0


TOLD = """
import torch
from orchestrator.runtime.steps.t5 import SpanCorruption

split = SpanCorruption._of_random_tokens

def told(step, samples):
    halves = split(step, samples)
    said = samples["tokens"][:, :1] % 16
    halves["text_enc"] = said.expand_as(halves["text_enc"]).contiguous()
    halves["labels"] = said.expand_as(halves["labels"]).contiguous()
    return halves

SpanCorruption._of_random_tokens = told
"""


def test_the_decoder_gives_back_what_only_the_encoder_was_told(
    ranks: Ranks, tmp_path: Path, inject: Callable[[str], Path]
) -> None:
    """One of 16 tokens for each sample, and noise for the decoder: alone it could not get below ln(16), 2.77. The two
    are on stages of their own, so what the encoder learns comes back to it through the pipeline.
    """
    job = tiny_job(
        "told",
        model={**MODEL, "num_layers": 1, "seq_length": 16, "decoder_seq_length": 16},
        parallelism=layout(pp=2),
        batch={"micro_batch_size": 8, "global_batch_size": 8},
        optimizer={"lr": 1e-2},
        schedule={"train_iters": 50, "lr_warmup_iters": 5},
    )
    curve = losses(ranks.must_train(make_run(tmp_path, job), job, inject=inject(TOLD)))
    assert curve[1] > 5.4
    assert mean(curve[step] for step in range(41, 51)) < 1.0


def test_it_learns_real_text(ranks: Ranks, sentences: str, tmp_path: Path) -> None:
    """From ln of the vocabulary to half of it, and on held-out text nearly as far."""
    job = t5_job(
        "learns",
        sentences,
        model={"num_layers": 1, "hidden_size": 64},
        batch={"micro_batch_size": 8, "global_batch_size": 8},
        optimizer={"lr": 6e-3},
        schedule={"train_iters": 150, "lr_warmup_iters": 15},
        evaluation={"eval_interval": 150, "eval_iters": 2, "eval_at_start": True},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    curve, held_out = losses(run), values(run, "validation/loss")
    assert 5.4 < curve[1] < 6.2, "ln(320) is 5.77"
    assert mean(curve[step] for step in range(131, 151)) < 2.95
    assert held_out[150] < held_out[0] - 2.5
