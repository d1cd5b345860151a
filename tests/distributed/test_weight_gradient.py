"""Weight gradients that products add to their buffers themselves are those that are added afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import UNSAVED, Ranks
from support.trained_together import TrainedTogether
from support.training import largest_difference, layout, losses, tiny_job, values

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("trains on real ranks")]

COUNTED = """
from orchestrator.runtime.callbacks.saving import CheckpointSaving
CheckpointSaving.on_end = lambda saving, session: None  # nobody looks at a checkpoint
from orchestrator.runtime import megatron_compat
_accumulate = megatron_compat.accumulate
def accumulate(inputs, of_output, buffer):
    with open(f"{sys.argv[1]}/products", "a") as file:
        print(*buffer.shape, file=file)
    _accumulate(inputs, of_output, buffer)
megatron_compat.accumulate = accumulate
"""

EXPERTS = {"num_experts": 16, "moe_router_topk": 1, "moe_router_pre_softmax": True, "activation": "swiglu"}
"""Of 16, for 32 tokens: some get none."""
T5 = {"architecture": "t5", "decoder_seq_length": 16, "vocab_size": 260, "position_embedding_type": "relative"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tied": ({}, layout(tp=2, dp=2, sequence_parallel=True)),
    "experts": ({**EXPERTS, "add_bias_linear": False}, layout(pp=2, dp=1)),
    "t5": (T5, layout(dp=2)),
}


def job(name: str, fused: bool, model: dict[str, Any], parallelism: dict[str, Any]) -> JobSpec:
    return tiny_job(
        name,
        model={"num_layers": 2, "hidden_size": 32, "seq_length": 32, **model},
        parallelism=parallelism,
        batch={"micro_batch_size": 1, "global_batch_size": 4},
        schedule={"train_iters": 2, "lr_warmup_iters": 0},
        runtime={"gradient_accumulation_fusion": fused},
    )


@pytest.mark.parametrize("name", CASES)
def test_the_same_gradients(name: str, ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path) -> None:
    plain, fused = (job(kind, kind == "fused", *CASES[name]) for kind in ("plain", "fused"))
    counted = inject(COUNTED)
    trained = TrainedTogether(ranks, tmp_path, {"plain": plain, "fused": fused}, counted, UNSAVED)
    one, other = trained["plain"], trained["fused"]
    assert not (one.path / "products").exists()
    rows, columns = zip(*(line.split() for line in (other.path / "products").read_text().splitlines()), strict=True)
    assert {"32"} < {*rows, *columns}
    for key in ("train/loss", "train/grad_norm"):
        assert largest_difference(values(one, key), values(other, key)) < 1e-6
    assert losses(other)[2] != losses(other)[1]
