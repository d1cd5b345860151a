"""Mixture of experts gives one process's losses at every layout, and checkpoints that are read at every other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

from orchestrator.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

MODEL: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "seq_length": 32,
    "activation": "swiglu",
    "add_bias_linear": False,
    "num_experts": 4,
    "moe_ffn_hidden_size": 48,
    "moe_aux_loss_coeff": 0.05,
    "moe_z_loss_coeff": 0.01,
}
STEPS = 6


def experts_job(name: str, model: dict[str, Any] | None = None, steps: int = STEPS, **degrees: Any) -> JobSpec:
    return tiny_job(
        name,
        model={**MODEL, **(model or {})},
        parallelism=layout(**degrees),
        schedule={"train_iters": steps, "lr_decay_style": "constant"},
    )


EP2 = {"expert_model_parallel_size": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"dp": 2},
    "ep2": {"dp": 2, **EP2},
    "ep2-plain-optimizer": {"dp": 2, **EP2, "use_distributed_optimizer": False},
    "tp2": {"tp": 2, "sequence_parallel": True},
    "tp2-ep2": {"tp": 2, "dp": 2, "sequence_parallel": True, **EP2},
    "tp2-ep2-whole-experts": {"tp": 2, "sequence_parallel": True, **EP2, "expert_tensor_parallel_size": 1},
    "tp2-whole-experts": {"tp": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1},
    "cp2-ep2": {"context_parallel_size": 2, **EP2},
    "pp2-ep2": {"pp": 2, "dp": 2, **EP2},
}


@pytest.fixture(scope="module")
def reference(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = experts_job("one")
    return ranks.must_train(make_run(tmp_path_factory.mktemp("reference"), job), job)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_layout(name: str, dispatcher: str, ranks: Ranks, reference: RunDir, tmp_path: Path) -> None:
    job = experts_job(name, {"moe_token_dispatcher_type": dispatcher}, **LAYOUTS[name])
    run = ranks.must_train(make_run(tmp_path, job), job)
    print(
        largest_difference(losses(reference), losses(run)),
        largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")),
    )
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert largest_difference(values(reference, "train/grad_norm"), values(run, "train/grad_norm")) < 1e-4


WHOLE = {"expert_tensor_parallel_size": 1}
MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spread-to-one": ({"dp": 2, **EP2}, {}),
    "one-to-spread": ({}, {"dp": 2, **EP2}),
    "tensor-to-pipeline": ({"tp": 2, "dp": 2, "sequence_parallel": True, **EP2}, {"pp": 2, "dp": 2, **EP2}),
    "whole-to-split": ({"tp": 2, "sequence_parallel": True, **EP2, **WHOLE}, {"tp": 2, "sequence_parallel": True}),
    "same": ({"dp": 2, **EP2}, {"dp": 2, **EP2}),
}


@pytest.mark.parametrize("name", MOVES)
def test_resumed_at_another_layout(name: str, ranks: Ranks, reference: RunDir, tmp_path: Path) -> None:
    before, after = MOVES[name]
    first = experts_job("moved", steps=STEPS // 2, **before)
    run = ranks.must_train(make_run(tmp_path, first), first)
    second = experts_job("moved", **after)
    ranks.must_train(make_run(tmp_path, second), second, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [STEPS // 2]
    print(largest_difference(losses(reference), losses(run)))
    assert largest_difference(losses(reference), losses(run)) < 1e-5
