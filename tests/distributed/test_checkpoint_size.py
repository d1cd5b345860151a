"""The planned size of a checkpoint, beside that of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import layout, make_run, tiny_job

from orchestrator.planning.forecast import checkpoint_bytes
from orchestrator.planning.plan import make_plan
from orchestrator.run_directory.checkpoints.commit_markers import committed

SGD = {"name": "sgd", "lr": 1e-3}


@pytest.mark.parametrize(
    ("dtype", "parallelism", "optimizer"),
    [
        ("fp32", layout(dp=2), {}),
        ("fp32", layout(use_distributed_optimizer=False), {}),
        ("bf16", layout(tp=2), {}),
        ("bf16", layout(use_distributed_optimizer=False), {}),
        ("fp16", layout(), {}),
        ("fp32", layout(use_distributed_optimizer=False), SGD),
        ("bf16", layout(), {**SGD, "sgd_momentum": 0.0}),
    ],
)
def test_a_checkpoint_is_as_large_as_planned(
    ranks: Ranks, tmp_path: Path, dtype: str, parallelism: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    """Names and places of its tensors take some kilobytes each, which is little only beside tensors that are large."""
    job = tiny_job(
        "size",
        model={"num_layers": 2, "hidden_size": 256, "vocab_size": 4000},
        precision={"dtype": dtype},
        parallelism=parallelism,
        optimizer=optimizer,
        schedule={"train_iters": 1, "lr_warmup_iters": 0},
    )
    run = ranks.must_train(make_run(tmp_path, job), job)
    [commit] = committed(run)
    size = sum(path.stat().st_size for path in commit.path.rglob("*") if path.is_file())
    planned = checkpoint_bytes(job, make_plan(job).parameters.total)
    assert planned < size < 1.03 * planned
