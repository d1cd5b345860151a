"""The output layer and the loss together, part by part over the tokens, are what they are one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from support.faults import UNSAVED, Ranks
from support.trained_together import TrainedTogether, selected
from support.training import largest_difference, layout, losses, tiny_job, values

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
        schedule={"train_iters": 3, "lr_warmup_iters": 0},
        evaluation={"eval_interval": 3, "eval_iters": 1},
        precision=precision,
        runtime=runtime,
    )


class Case(NamedTuple):
    """Whether the output layer has weights of its own, whether gradients are added to buffers, and where."""

    untied: bool
    fused: bool
    split: dict[str, Any]
    precision: dict[str, Any]

    @property
    def plain(self) -> str:
        """What it is held against."""
        return f"plain-{self.untied}-{self.precision.get('dtype')}"


CASES = {
    "tied-fused": Case(False, True, layout(), {}),
    "tp2-sp-fused": Case(True, True, layout(tp=2, sequence_parallel=True), {}),
    "tied-tp2": Case(False, False, layout(tp=2), {}),
    "tied-bf16": Case(False, False, layout(), BF16),
}


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """Each case, and what it is held against."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.py").write_text(f"import sys\n{SMALL_CHUNKS}")
    cases = {name: CASES[name] for name in selected(request, "name")}
    jobs = {case.plain: job("plain", {}, case.precision, case.untied) for case in cases.values()}
    for name, case in cases.items():
        joins = {"fused_linear_cross_entropy": True, "gradient_accumulation_fusion": case.fused}
        jobs[name] = job("joined", case.split, case.precision, case.untied, **joins)
    return TrainedTogether(ranks, folder, jobs, lambda name: folder / "small.py" if name in cases else None, UNSAVED)


@pytest.mark.parametrize("name", CASES)
def test_the_same_losses_and_gradients(name: str, trained: TrainedTogether[str]) -> None:
    case = CASES[name]
    one, other = trained[case.plain], trained[name]
    is_split = case.split["tensor_model_parallel_size"] == 2
    computed = {int(line) for line in (other.path / "tokens").read_text().split()}
    assert computed == ({7, 1} if is_split else {3, 1})
    assert (other.path / "buffer").exists() == (case.precision != BF16), "the weight's gradient is added to its buffer"
    for key in ("train/loss", "validation/loss", "train/grad_norm"):
        near = 1e-2 if case.precision == BF16 else 1e-5
        assert largest_difference(values(one, key), values(other, key)) < near, key
    assert losses(other)[3] != losses(other)[1]
