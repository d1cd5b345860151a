"""A hybrid on a GPU in bf16, with mamba-ssm's kernels, against its definition in plain torch on the CPU in fp32."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.cpu_weights import ON_THE_CPU
from support.faults import Ranks
from support.mamba_stub import INSTALL
from support.training import four_layer_job, largest_difference, losses, make_run, values

from orchestrator.spec.job import JobSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(580),
    pytest.mark.skipif(
        importlib.util.find_spec("mamba_ssm") is None, reason="needs the kernels of mamba-ssm, which are not installed"
    ),
]

MODEL = {
    **{"architecture": "mamba", "num_layers": 4, "hybrid_override_pattern": "M*-M", "hidden_size": 256},
    **{"num_attention_heads": 4, "seq_length": 64, "mamba_state_dim": 64, "mamba_num_groups": 2, "vocab_size": 1000},
    "init_method_std": 0.05,  # so large that what the layers do shows in the losses
}
EXPERTS = {
    **{"hybrid_override_pattern": "ME*E", "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 256},
    **{"activation": "squared_relu", "add_bias_linear": False},
}
"""All layers are recomputed on the GPU."""
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"plain": ({}, {}), "experts": (EXPERTS, RECOMPUTED)}


def hybrid_job(name: str, model: dict[str, Any], **sections: Any) -> JobSpec:
    return four_layer_job(name, model={**MODEL, **model}, schedule={"train_iters": 10}, **sections)


def on_gpu(kind: str, layers: str | None = None) -> JobSpec:
    model, runtime = KINDS[kind]
    runtime = {**runtime, "device": "cuda", **({"layers": layers} if layers else {})}
    return hybrid_job("gpu", model, precision={"dtype": "bf16"}, runtime=runtime)


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [job for kind, (model, _) in KINDS.items() for job in (hybrid_job("cpu", model), on_gpu(kind))]


@pytest.mark.parametrize("layers", ["torch", "transformer_engine"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_what_the_cpu_trains(kind: str, layers: str, ranks: Ranks, tmp_path: Path) -> None:
    if layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    stubs, weights = tmp_path / "stubs.py", tmp_path / "weights.py"
    weights.write_text(ON_THE_CPU)
    stubs.write_text(INSTALL)
    # The rule that keeps a hybrid off the CPU does not know the stubs; it does not hold for a run that is there.
    cpu = hybrid_job("cpu", KINDS[kind][0])
    cpu = cpu.model_copy(update={"runtime": cpu.runtime.model_copy(update={"device": "cpu"})})
    exact = ranks.must_train(make_run(tmp_path, cpu), cpu, inject=stubs)
    gpu = on_gpu(kind, layers)
    found = ranks.must_train(make_run(tmp_path, gpu), gpu, inject=weights)
    of_losses = largest_difference(losses(exact), losses(found))
    of_norms = largest_difference(values(exact, "train/grad_norm"), values(found, "train/grad_norm"))
    print(
        f"\nRESULT hybrid {kind} {layers} bf16 on a GPU, fp32 on the CPU: losses {of_losses:.1e}, norms {of_norms:.1e}"
    )
    assert of_losses < 1e-2
    assert of_norms < 5e-2
