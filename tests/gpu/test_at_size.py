"""gpt-1.7b for 50 steps on text under each kind of parallelism, in FP8, with experts and with adapters.

Two jobs of two GPUs train side by side where there are four. What is measured is kept in $MEASURED, and the same call
again goes on where the last one ended:

    MEASURED=runs/measured python -m pytest tests/gpu/test_at_size.py -s

AT_SIZE_GPUS=4 trains each job on four GPUs, with twice the replicas and the batch; AT_SIZE_SECONDS ends a call in time.
"""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.fixtures import tokenized
from support.measured import Measured, Meter, asked_of, gpu_count, has_layers, needs_gpus, padded_vocab
from support.shipped import SHIPPED

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job
from orchestrator.spec.sections.runtime import Layers

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

GPUS = int(os.environ.get("AT_SIZE_GPUS", "2"))
SECONDS = float(os.environ.get("AT_SIZE_SECONDS", "480"))
"""After this no further job is measured."""
STEPS, MICRO_BATCH = 50, 4
JOB = SHIPPED["gpt-1.7b"]
TE: Layers = "transformer_engine"


@dataclass(frozen=True)
class Case:
    """What is written over jobs/benchmarks/gpt-1.7b.yaml."""

    layers: Layers
    changes: tuple[str, ...] = ()
    reference: str | None = None
    """The case whose losses it has, the first one and the mean of the last five: the same weights learn from the same
    samples."""
    first_tolerance: float = 0.002
    tolerance: float = 0.05
    falls_by: float = 4.0
    """The loss begins at the logarithm of the vocabulary, 11.8, and a bit."""


TP2 = ("parallelism.tensor_model_parallel_size=2", "parallelism.sequence_parallel=true")
CP2 = ("parallelism.context_parallel_size=2",)
CASES = {
    "dp2": Case(TE),
    "cp2": Case(TE, CP2, "dp2"),
    # Two of eight experts have as many weights together as the MLP that they stand for.
    "ep2": Case(
        TE,
        (
            "parallelism.expert_model_parallel_size=2",
            "model.num_experts=8",
            "model.moe_router_topk=2",
            "model.moe_ffn_hidden_size=4096",
            "model.moe_aux_loss_coeff=0.01",
            "model.moe_router_dtype=fp32",
            "model.moe_grouped_gemm=true",
        ),
    ),
    "pp2-vp2": Case(
        TE,
        (
            "parallelism.pipeline_model_parallel_size=2",
            "parallelism.virtual_pipeline_model_parallel_size=2",
            "batch.micro_batch_size=2",
        ),
        "dp2",
    ),
    "fp8-tp2": Case(TE, (*TP2, "precision.fp8.recipe=delayed"), "dp2", first_tolerance=0.02),
    # Beside initial weights, which a person is refused on text: a checkpoint of this size takes minutes to write.
    "lora-tp2": Case("torch", (*TP2, "model.lora={rank: 16}", "optimizer.lr=1e-3"), falls_by=1.0),
    "dp2-torch": Case("torch", reference="dp2"),
    "cp2-torch": Case("torch", CP2, "dp2-torch"),
}


def case_job(name: str, text: str) -> JobSpec:
    """A case; `text` is the prefix of a data set."""
    case = CASES[name]
    changes = [
        f"name=at-size-{name}",
        f"runtime.layers={case.layers}",
        f"launch.gpus_per_node={GPUS}",
        f"batch.micro_batch_size={MICRO_BATCH}",
        f"batch.global_batch_size={MICRO_BATCH * GPUS}",
        f"schedule.train_iters={STEPS}",
        "schedule.lr_warmup_iters=5",
        "tracking.mlflow=false",
        *case.changes,
    ]
    job = load_job([JOB], changes).job
    data = load_job([JOB], ["data.random_tokens=false", f"data.blend=[{text}]"]).job.data
    return job.model_copy(update={"data": data})


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` is the prefix of a data set."""
    return [case_job(name, text) for name in CASES]


@dataclass(frozen=True)
class Known:
    """What was measured of all cases."""

    found: dict[str, Measured]
    kept: frozenset[str]
    """The cases that an earlier call measured."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prefix of a data set where a later call finds it again: a package of Python's standard library, as bytes."""
    folder = Path(os.environ.get("MEASURED") or tmp_path_factory.mktemp("text"))
    prefix = folder / "asyncio"
    return str(prefix) if prefix.with_suffix(".idx").exists() else tokenized("asyncio", prefix, "--append-eod")


@pytest.fixture(scope="module")
def known(request: pytest.FixtureRequest, meter: Meter, text: str) -> Known:
    """Every case that this session asks for and this machine can run, and what these are compared with."""
    asked = {name for (name,) in asked_of(request, "name")}
    asked |= {reference for name in asked if (reference := CASES[name].reference)}
    runnable = {name: case_job(name, text) for name in CASES if name in asked and has_layers(CASES[name].layers)}
    kept = {name: measured for name, job in runnable.items() if (measured := meter.known(job))}
    missing = [job for name, job in runnable.items() if name not in kept and job.world_size <= gpu_count()]
    now = meter.measure_all(missing, SECONDS)
    return Known({**kept, **{name.removeprefix("at-size-"): each for name, each in now.items()}}, frozenset(kept))


def describe(name: str, job: JobSpec, measured: Measured) -> str:
    seconds, tokens = measured.step_seconds, job.global_batch_size * job.model.seq_length
    flops = model_flops(job, tokens, padded_vocab(job)) / seconds / job.world_size
    peak = peak_flops(measured.device, job.precision.dtype)
    return (
        f"RESULT {name} {measured.layers} {job.world_size} GPUs {seconds * 1000:.0f} ms/step "
        f"({measured.spread[0] * 1000:.0f} to {measured.spread[1] * 1000:.0f}) "
        f"{tokens / seconds / job.world_size:,.0f} tokens/s/GPU {flops / 1e12:.0f} TFLOP/s/GPU "
        f"MFU {flops / peak if peak else math.nan:.1%} (of {job.precision.dtype}'s peak) "
        f"memory {max(measured.peak_bytes) / 2**30:.1f} GiB "
        f"loss {measured.losses[0]:.3f} to {measured.losses[-1]:.3f}"
    )


@pytest.mark.parametrize("name", CASES)
def test_trains(name: str, known: Known, text: str) -> None:
    case, job = CASES[name], case_job(name, text)
    needs_gpus(job.world_size, case.layers)
    if name not in known.found:
        pytest.skip(f"no time was left for it in {SECONDS:.0f} s: call again")
    measured = known.found[name]
    assert measured.outcome == "measured", measured.message
    print(f"\n{describe(name, job, measured)}")
    losses = measured.losses
    assert len(losses) == STEPS
    assert all(map(math.isfinite, (*losses, *measured.grad_norms)))
    end = statistics.mean(losses[-5:])
    assert end < losses[0] - case.falls_by
    assert measured.layers == case.layers
    assert measured.step_seconds < 3
    if case.reference is not None:
        reference = known.found.get(case.reference)
        if reference is None:
            pytest.skip(f"{case.reference}, which it is compared with, is not measured yet: call again")
        assert reference.outcome == "measured", reference.message
        first, last = reference.losses[0], statistics.mean(reference.losses[-5:])
        print(f"RESULT {name} against {case.reference}: {losses[0] / first - 1:+.2%} at first, {end / last - 1:+.2%}")
        assert abs(losses[0] / first - 1) < case.first_tolerance
        assert abs(end / last - 1) < case.tolerance
        if job.precision.fp8 is not None:
            assert losses[0] != reference.losses[0], "it multiplied in FP8"
    if name in known.kept:
        pytest.skip("measured by an earlier call, and kept")
