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
from orchestrator.planning.memory import chunked_loss
from orchestrator.runtime.losses import linear
chunked_loss._LOGITS = 1000
_logits = linear._logits
def logits(hidden, *rest):
    with open(f"{sys.argv[1]}/tokens", "a") as file:
        print(len(hidden), file=file)
    return _logits(hidden, *rest)
linear._logits = logits
accumulate = linear.accumulate
def accumulated(*arguments):
    with open(f"{sys.argv[1]}/accumulated", "a") as file:
        print("once", file=file)
    accumulate(*arguments)
linear.accumulate = accumulated
"""
"""A few tokens at a time, of 64: the last part is shorter."""


def job(name: str, parallelism: dict[str, Any], *, joined: bool = True, fused: bool = False, **model: Any) -> JobSpec:
    return tiny_job(
        name,
        model={"num_layers": 2, "hidden_size": 32, "seq_length": 32, **model},
        parallelism=parallelism,
        batch={"micro_batch_size": 2, "global_batch_size": 4},
        schedule={"train_iters": 4, "lr_warmup_iters": 1},
        evaluation={"eval_interval": 4, "eval_iters": 1},
        runtime={"fused_linear_cross_entropy": joined, "gradient_accumulation_fusion": fused},
    )


@pytest.mark.parametrize(
    ("untied", "fused", "split"),
    [
        (False, True, layout()),
        (True, True, layout(tp=2, sequence_parallel=True)),
        (False, False, layout(tp=2)),
    ],
)
def test_the_same_losses_and_gradients(
    untied: bool, fused: bool, split: dict[str, Any], ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path
) -> None:
    words = {"untie_embeddings_and_output_weights": untied}
    plain, joined = job("plain", {}, joined=False, **words), job("joined", split, fused=fused, **words)
    one = ranks.must_train(make_run(tmp_path, plain), plain)
    other = ranks.must_train(make_run(tmp_path, joined), joined, inject=inject(SMALL_CHUNKS))
    computed = {int(line) for line in (other.path / "tokens").read_text().split()}
    assert computed == ({7, 1} if joined.world_size == 2 else {3, 1})
    assert (other.path / "accumulated").exists() == fused, "the weight's gradient goes to its buffer at once"
    for key in ("train/loss", "validation/loss", "train/grad_norm"):
        assert largest_difference(values(one, key), values(other, key)) < 1e-5
    assert losses(other)[4] != losses(other)[1]
