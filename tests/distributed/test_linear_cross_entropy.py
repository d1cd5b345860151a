"""The output layer and the loss together, part by part over the tokens, are what they are one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains on real ranks")]

SMALL_CHUNKS = """
from orchestrator.kernel_selection import chunked_loss
from orchestrator.runtime.cross_entropy import linear
chunked_loss._LOGITS, chunked_loss.CHUNKS = 1000, 64
_logits = linear._logits
def logits(hidden, *rest):
    with open(f"{sys.argv[1]}/tokens", "a") as file:
        print(len(hidden), file=file)
    return _logits(hidden, *rest)
linear._logits = logits
nothing_to_add = linear.nothing_to_add
def in_its_buffer(weight):
    open(f"{sys.argv[1]}/buffer", "w").close()
    return nothing_to_add(weight)
linear.nothing_to_add = in_its_buffer
"""
"""A few tokens at a time, of 64: the last part is shorter."""


BF16 = {"dtype": "bf16", "grad_reduce_in_fp32": False}
"""Buffers in which a sum of many parts would be rounded as many times."""


def job(name: str, parallelism: dict[str, Any], precision: dict[str, Any], untied: bool, **runtime: Any) -> JobSpec:
    return tiny_job(
        name,
        model={"num_layers": 2, "hidden_size": 32, "seq_length": 32, "untie_embeddings_and_output_weights": untied},
        parallelism=parallelism,
        batch={"micro_batch_size": 2, "global_batch_size": 4},
        schedule={"train_iters": 4, "lr_warmup_iters": 1},
        evaluation={"eval_interval": 4, "eval_iters": 1},
        precision=precision,
        runtime=runtime,
    )


@pytest.mark.parametrize(
    ("untied", "fused", "split", "precision"),
    [
        (False, True, layout(), {}),
        (True, True, layout(tp=2, sequence_parallel=True), {}),
        (False, False, layout(tp=2), {}),
        (False, False, layout(), BF16),
    ],
    ids=["tied-fused", "tp2-sp-fused", "tied-tp2", "tied-bf16"],
)
def test_the_same_losses_and_gradients(
    untied: bool,
    fused: bool,
    split: dict[str, Any],
    precision: dict[str, Any],
    ranks: Ranks,
    inject: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    joins = {"fused_linear_cross_entropy": True, "gradient_accumulation_fusion": fused}
    plain, joined = job("plain", {}, precision, untied), job("joined", split, precision, untied, **joins)
    one = ranks.must_train(make_run(tmp_path, plain), plain)
    other = ranks.must_train(make_run(tmp_path, joined), joined, inject=inject(SMALL_CHUNKS))
    computed = {int(line) for line in (other.path / "tokens").read_text().split()}
    assert computed == ({7, 1} if joined.world_size == 2 else {3, 1})
    assert (other.path / "buffer").exists() == (precision != BF16), "the weight's gradient is added to its buffer"
    for key in ("train/loss", "validation/loss", "train/grad_norm"):
        assert largest_difference(values(one, key), values(other, key)) < (1e-2 if precision == BF16 else 1e-5)
    assert losses(other)[4] != losses(other)[1]
