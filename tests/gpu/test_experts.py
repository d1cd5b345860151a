"""Mixture of experts on GPUs: grouped matrix products agree with experts one by one, and experts spread over GPUs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.training import events, largest_difference, layout, losses, make_run, tiny_job

from orchestrator.rundir import RunDir
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MODEL = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "seq_length": 256,
    "vocab_size": 1000,
    "activation": "swiglu",
    "add_bias_linear": False,
    "num_experts": 8,
    "moe_ffn_hidden_size": 512,
    "moe_shared_expert_intermediate_size": 256,
    "moe_aux_loss_coeff": 0.01,
    "moe_router_dtype": "fp32",
}
EP2 = {"expert_model_parallel_size": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ep2": {"dp": 2, **EP2},
    "tp2-ep2": {"tp": 2, "dp": 2, "sequence_parallel": True, **EP2},
    "tp2-ep2-whole-experts": {"tp": 2, "sequence_parallel": True, **EP2, "expert_tensor_parallel_size": 1},
    "pp2-ep2": {"pp": 2, "dp": 2, **EP2},
}


def experts_job(name: str, layers: str, steps: int = 20, *, grouped: bool | None = None, **degrees: Any) -> JobSpec:
    return tiny_job(
        name,
        model={**MODEL, "moe_grouped_gemm": grouped},
        parallelism=layout(**degrees),
        precision={"dtype": "bf16"},
        runtime={"layers": layers},
        schedule={"train_iters": steps, "lr_decay_style": "constant"},
    )


@pytest.fixture(scope="module", params=["torch", "transformer_engine"])
def layers(request: pytest.FixtureRequest) -> str:
    if request.param == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def reference(ranks: Ranks, layers: str, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = experts_job("one", layers)
    return ranks.must_train(make_run(tmp_path_factory.mktemp("reference"), job), job)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree_in_bf16(name: str, layers: str, reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    job = experts_job(name, layers, **LAYOUTS[name])
    if torch.cuda.device_count() < job.world_size:
        pytest.skip(f"needs {job.world_size} GPUs, this machine has {torch.cuda.device_count()}")
    run = ranks.must_train(make_run(tmp_path, job), job)
    assert largest_difference(losses(reference), losses(run)) < 2e-2


def test_one_kernel_or_one_expert_after_the_other(layers: str, reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    """Transformer Engine's layers group by themselves; a checkpoint of one kind goes on as the other."""
    if layers == "torch":
        pytest.skip("torch's layers have no grouped products")
    first = experts_job("kinds", layers, 10, grouped=False)
    run = ranks.must_train(make_run(tmp_path, first), first)
    second = experts_job("kinds", layers, grouped=True)
    ranks.must_train(make_run(tmp_path, second), second, launch_id="second")
    assert [event["iteration"] for event in events(run, "resumed")] == [10]
    assert largest_difference(losses(reference), losses(run)) < 2e-2
