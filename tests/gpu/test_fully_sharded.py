"""Weights that two GPUs share out: the losses of whole ones, and the memory and time that are planned.

python -m pytest tests/gpu/test_fully_sharded.py -s
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter, asked_of, largest_differences, needs_gpus, padded_vocab
from support.training import four_layer_job, largest_difference, layout, losses, make_run

from orchestrator.planning.memory import estimate_memory
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MIB = 2**20
STEPS = 10
MODEL: dict[str, Any] = {
    **{"num_layers": 16, "hidden_size": 1024, "num_attention_heads": 8, "seq_length": 1024, "vocab_size": 32000},
    **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False, "init_method_std": 0.05},
    "untie_embeddings_and_output_weights": True,
}
"""3.3e8 parameters, 2.7e8 of them in layers: whole weights and gradients are 1.9 GiB."""
EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 1024, "moe_router_dtype": "fp32"}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "torch": {"runtime": {"layers": "torch", "attention_backend": "fused"}},
    "transformer-engine": {"runtime": {"layers": "transformer_engine", "attention_backend": "fused"}},
    "recomputed": {"runtime": {"layers": "torch", "attention_backend": "fused", **FULL}},
    "gradients-in-bf16": {
        "runtime": {"layers": "torch", "attention_backend": "fused"},
        "precision": {"grad_reduce_in_fp32": False},
    },
    "experts": {
        "runtime": {"layers": "transformer_engine", "attention_backend": "fused"},
        "model": EXPERTS,
        "parallelism": {"expert_model_parallel_size": 2},
        "optimizer": {"lr": 1e-4},  # at 1e-3 the norms of gradients halve in ten steps, and a router's choice flips
    },
}
HOW = {"whole": None, "full": "full"}
LOSSES, NORMS = 2e-3, 2e-2
"""Largest relative differences: two runs of one job differ too, by gradients that are added up in any order."""


def job_of(case: str, how: str, steps: int = STEPS) -> JobSpec:
    sections = CASES[case]
    return four_layer_job(
        f"sharded-{case}-{how}",
        **{
            "batch": {"micro_batch_size": 2, "global_batch_size": 8},
            "model": {**MODEL, **sections.get("model", {})},
            "precision": {"dtype": "bf16", **sections.get("precision", {})},
            "parallelism": layout(dp=2, fsdp=HOW[how], **sections.get("parallelism", {})),
            "runtime": {"cuda_graphs": False, **sections["runtime"]},
            "optimizer": {"lr": 1e-3, **sections.get("optimizer", {})},
            "schedule": {"train_iters": steps, "lr_warmup_iters": 2, "lr_decay_iters": STEPS},
        },
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [job_of(case, how) for case in CASES for how in HOW]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, trainer: Meter) -> dict[str, Measured]:
    """The jobs that this session asks for, and those that they are compared with."""
    asked = {case for (case,) in asked_of(request, "case")}
    return trainer.measure_all(job_of(case, how) for case in CASES for how in HOW if case in asked)


@pytest.mark.parametrize("case", CASES)
def test_trains_what_whole_weights_train_in_less_memory(case: str, trained: dict[str, Measured]) -> None:
    needs_gpus(2, CASES[case]["runtime"]["layers"])
    job, plain_job = job_of(case, "full"), job_of(case, "whole")
    found, plain = trained[job.name], trained[plain_job.name]
    for each in (found, plain):
        assert each.outcome == "measured", each.message
    loss, norm = largest_differences(plain, found)
    layers = CASES[case]["runtime"]["layers"]
    [planned] = estimate_memory(job, padded_vocab(job), layers).stages
    print(
        f"\nRESULT {case}: losses {loss:.1e} gradient norms {norm:.1e} apart, found {found.peak_bytes[0] // MIB} MiB, "
        f"planned {planned.peak_bytes // MIB}, whole {plain.peak_bytes[0] // MIB}; "
        f"steps {found.step_seconds:.3f} s (whole {plain.step_seconds:.3f})"
    )
    assert loss < LOSSES
    assert norm < NORMS
    assert abs(planned.peak_bytes / found.peak_bytes[0] - 1) < 0.05
    assert found.peak_bytes[0] < plain.peak_bytes[0]


def test_a_run_goes_on_sharded_and_whole(ranks: Ranks, tmp_path: Path) -> None:
    needs_gpus(2, "torch")
    job = job_of("torch", "whole")
    whole = ranks.must_train(make_run(tmp_path / "whole", job), job)
    for number, how in enumerate(("full", "whole", "full", "full")):
        job = job_of("torch", how, 2 * number + 4).model_copy(update={"name": "moved"})
        run = ranks.must_train(make_run(tmp_path / "moved", job), job, launch_id=str(number))
    apart = largest_difference(losses(whole), losses(run))
    print(f"\nRESULT a run that goes on sharded and whole: losses {apart:.1e} apart")
    assert apart < LOSSES
