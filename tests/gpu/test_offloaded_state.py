"""Optimizer state in the host's memory on GPUs: the same updates, less of a GPU's memory, as planned, and resumes.

python -m pytest tests/gpu/test_offloaded_state.py -s
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.gpu_clock import fastest
from support.measured import Measured, Meter, asked_of, largest_differences, needs_gpus, padded_vocab
from support.training import four_layer_job, largest_difference, layout, losses, make_run

from orchestrator.planning.memory import estimate_memory
from orchestrator.runtime.optimizers.adam import GroupStepAdam
from orchestrator.runtime.optimizers.offloaded_adam import OffloadedAdam
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MIB = 2**20
STEPS = 10
MODEL: dict[str, Any] = {
    **{"hidden_size": 512, "num_attention_heads": 8, "seq_length": 512, "vocab_size": 50000, "init_method_std": 0.05},
    **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False},
}
"""6.4e7 parameters, whose state is 730 MiB: seven blocks and a half, of which two are on the GPU."""
EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 512, "moe_router_dtype": "fp32"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alone": ({}, {}),
    "fp32": ({}, {"precision": {"dtype": "fp32"}}),
    "moments-in-bf16": ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "adam_beta2": 0.95}, {}),
    "gradients-in-bf16": ({}, {"precision": {"dtype": "bf16", "grad_reduce_in_fp32": False}}),
    "dp2": ({}, {"parallelism": layout(dp=2)}),
    "tp2-pp2": ({}, {"parallelism": layout(tp=2, pp=2, sequence_parallel=True)}),
    "ep2": ({}, {"parallelism": layout(dp=2, expert_model_parallel_size=2), "model": EXPERTS}),
    "captured": ({}, {"runtime": {"cuda_graphs": True}}),
}
"""Fields of the optimizer and other sections, by a name."""
FRACTIONS = {"gpu": 0.0, "half": 0.5, "host": 1.0}
LOSSES, NORMS = 2e-3, 2e-2
"""Largest relative differences: two runs of one job differ too, by gradients that are added up in any order."""


def job_of(case: str, where: str, steps: int = STEPS) -> JobSpec:
    optimizer, sections = CASES[case]
    return four_layer_job(
        f"state-{case}-{where}",
        **{
            "batch": {"micro_batch_size": 4, "global_batch_size": 8},
            "precision": {"dtype": "bf16"},
            **sections,
            "runtime": {
                "layers": "torch",
                "attention_backend": "fused",
                "cuda_graphs": False,
                **sections.get("runtime", {}),
            },
            "model": {**MODEL, **sections.get("model", {})},
            "optimizer": {"lr": 1e-3, "offload_fraction": FRACTIONS[where], **optimizer},
            "schedule": {"train_iters": steps, "lr_warmup_iters": 2, "lr_decay_iters": STEPS},
        },
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [job_of(case, where) for case in CASES for where in FRACTIONS]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16])
def test_updates_are_bitwise_those_beside_the_weights(fraction: float, moments: torch.dtype) -> None:
    """Also where the next update begins while blocks of the last one are still on their way."""
    needs_gpus(1, "torch")
    sizes = (1, 17, 2048, 300_001, 1_000_000)
    generator = torch.Generator().manual_seed(1)
    held = [torch.randn(size, generator=generator).cuda().bfloat16() for size in sizes]
    offloaded, mains = [weight.clone() for weight in held], [weight.float() for weight in held]
    options: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    ours, reference = OffloadedAdam(offloaded, **options), GroupStepAdam(mains, **options)
    reference.weights = dict(zip(mains, held, strict=True))
    for adam in (ours, reference):
        adam.dtypes = {} if moments == torch.float32 else dict.fromkeys(adam.state_keys, moments)
    ours.fraction, ours.block_elements = fraction, 1 << 16
    ours.prepare()
    for _ in range(20):
        for weight, main, size in zip(offloaded, mains, sizes, strict=True):
            main.grad = torch.randn(size, generator=generator).cuda()
            vars(weight)["decoupled_grad"] = main.grad.clone()
        for adam in (ours, reference):
            adam.factor = 0.5
            adam.look_up()
            adam.step()
    for weight, other, main in zip(offloaded, held, mains, strict=True):
        assert torch.equal(weight, other)
        for start, state in ours.stored(weight):
            whole = {"param": main, **reference.state[main]}
            for key, tensor in state.items():
                assert torch.equal(tensor.cpu(), whole[key].detach()[start : start + tensor.numel()].cpu())


def test_an_update_takes_as_long_as_the_link() -> None:
    """Each way at once: 12 bytes of each of 2.7e8 parameters."""
    needs_gpus(1, "torch")
    weight = torch.zeros(2**28, device="cuda", dtype=torch.bfloat16)
    adam = OffloadedAdam([weight], lr=1e-3)
    adam.prepare()
    vars(weight)["decoupled_grad"] = torch.zeros(2**28, device="cuda")
    adam.look_up()
    seconds = fastest(adam.step)
    buffer, host = (
        torch.empty(2**30, dtype=torch.uint8, device="cuda"),
        torch.empty(2**30, dtype=torch.uint8).pin_memory(),
    )
    one_way = 12 * 2**28 / (2**30 / fastest(lambda: buffer.copy_(host, non_blocking=True)))
    print(
        f"\nRESULT an update of {2**28:,} parameters from the host: {seconds:.3f} s, {seconds / one_way:.2f} times "
        "copies one way"
    )
    assert seconds < 1.6 * one_way, "copies there and copies back go at the same time"


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, trainer: Meter) -> dict[str, Measured]:
    """The jobs that this session asks for, and those that they are compared with."""
    asked = {case for case, _ in asked_of(request, "case", "where")}
    return trainer.measure_all(job_of(case, where) for case in CASES for where in FRACTIONS if case in asked)


@pytest.mark.parametrize("where", ["half", "host"])
@pytest.mark.parametrize("case", CASES)
def test_trains_what_the_plain_job_trains_in_less_memory(case: str, where: str, trained: dict[str, Measured]) -> None:
    job, plain_job = job_of(case, where), job_of(case, "gpu")
    found, plain = trained[job.name], trained[plain_job.name]
    for each in (found, plain):
        assert each.outcome == "measured", each.message
    loss, norm = largest_differences(plain, found)
    planned, of_plain = (estimate_memory(each, padded_vocab(each), "torch").stages for each in (job, plain_job))
    peaks = {"found": found.peak_bytes, "planned": [stage.peak_bytes for stage in planned], "plain": plain.peak_bytes}
    in_mib = ", ".join(f"{name} {[peak // MIB for peak in each]} MiB" for name, each in peaks.items())
    print(
        f"\nRESULT {case} {where}: losses {loss:.1e} gradient norms {norm:.1e} apart, {in_mib}; "
        f"steps {found.step_seconds:.3f} s (plain {plain.step_seconds:.3f})"
    )
    assert loss < LOSSES
    assert norm < NORMS
    for stage, peak, other, before in zip(planned, found.peak_bytes, of_plain, plain.peak_bytes, strict=True):
        assert abs(stage.peak_bytes / peak - 1) < 0.05
        saved = other.peak_bytes - stage.peak_bytes
        assert before - peak == pytest.approx(saved, abs=0.1 * saved + 32 * MIB)


def test_a_run_goes_on_wherever_its_state_is(ranks: Ranks, tmp_path: Path) -> None:
    """From the GPU to the host, half of it back, and another layout where there are two GPUs."""
    needs_gpus(1, "torch")
    whole = ranks.must_train(make_run(tmp_path / "whole", job_of("alone", "gpu")), job_of("alone", "gpu"))
    moved = tmp_path / "moved"
    cases = ("alone", "alone", "dp2" if torch.cuda.device_count() > 1 else "alone", "alone")
    for number, (case, where) in enumerate(zip(cases, ("gpu", "host", "half", "host"), strict=True)):
        job = job_of(case, where, 2 * number + 4).model_copy(update={"name": "moved"})
        run = ranks.must_train(make_run(moved, job), job, launch_id=str(number))
    apart = largest_difference(losses(whole), losses(run))
    print(f"\nRESULT a run whose state moves: losses {apart:.1e} apart")
    assert apart < LOSSES
