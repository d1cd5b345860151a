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


def hybrid_job(name: str, **sections: Any) -> JobSpec:
    return four_layer_job(name, model=MODEL, schedule={"train_iters": 10}, **sections)


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [hybrid_job("cpu"), hybrid_job("gpu", precision={"dtype": "bf16"})]


@pytest.mark.parametrize("layers", ["torch", "transformer_engine"])
def test_a_gpu_trains_what_the_cpu_trains(layers: str, ranks: Ranks, tmp_path: Path) -> None:
    if layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    stubs, weights = tmp_path / "stubs.py", tmp_path / "weights.py"
    weights.write_text(ON_THE_CPU)
    stubs.write_text(INSTALL)
    # The rule that keeps a hybrid off the CPU does not know the stubs; it does not hold for a run that is there.
    cpu = hybrid_job("cpu")
    cpu = cpu.model_copy(update={"runtime": cpu.runtime.model_copy(update={"device": "cpu"})})
    exact = ranks.must_train(make_run(tmp_path, cpu), cpu, inject=stubs)
    gpu = hybrid_job("gpu", precision={"dtype": "bf16"}, runtime={"device": "cuda", "layers": layers})
    found = ranks.must_train(make_run(tmp_path, gpu), gpu, inject=weights)
    of_losses = largest_difference(losses(exact), losses(found))
    of_norms = largest_difference(values(exact, "train/grad_norm"), values(found, "train/grad_norm"))
    print(f"\nRESULT hybrid {layers} bf16 on a GPU, fp32 on the CPU: losses {of_losses:.1e}, norms {of_norms:.1e}")
    assert of_losses < 1e-2
    assert of_norms < 5e-2
