"""The planned size of a checkpoint, beside that of real ones."""

from __future__ import annotations

from typing import Any

import pytest
from support.faults import Ranks
from support.trained_together import TrainedTogether, selected
from support.training import layout, tiny_job

from orchestrator.planning.forecast import checkpoint_bytes
from orchestrator.planning.plan import make_plan
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.spec.job import JobSpec

SGD = {"name": "sgd", "lr": 1e-3}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fp32-dp2": ("fp32", layout(dp=2), {}),
    "fp32-plain": ("fp32", layout(use_distributed_optimizer=False), {}),
    "bf16-tp2": ("bf16", layout(tp=2), {}),
    "bf16-plain": ("bf16", layout(use_distributed_optimizer=False), {}),
    "fp16": ("fp16", layout(), {}),
    "fp32-plain-sgd": ("fp32", layout(use_distributed_optimizer=False), SGD),
    "bf16-sgd-without-momentum": ("bf16", layout(), {**SGD, "sgd_momentum": 0.0}),
}


def job(case: str) -> JobSpec:
    dtype, parallelism, optimizer = CASES[case]
    return tiny_job(
        "size",
        model={"num_layers": 2, "hidden_size": 256, "vocab_size": 4000},
        precision={"dtype": dtype},
        parallelism=parallelism,
        optimizer=optimizer,
        schedule={"train_iters": 1, "lr_warmup_iters": 0},
    )


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    jobs = {case: job(case) for case in selected(request, "case")}
    return TrainedTogether(ranks, tmp_path_factory.mktemp("sizes"), jobs)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_as_large_as_planned(case: str, trained: TrainedTogether[str]) -> None:
    """Names and places of its tensors take some kilobytes each, which is little only beside tensors that are large."""
    [commit] = committed(trained[case])
    size = sum(path.stat().st_size for path in commit.path.rglob("*") if path.is_file())
    planned = checkpoint_bytes(job(case), make_plan(job(case)).parameters.total)
    assert planned < size < 1.03 * planned
