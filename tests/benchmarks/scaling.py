"""Writes docs/benchmarks/scaling.md: what the plan says of more GPUs for larger models (weak scaling) and for one model
(strong scaling), beside what Megatron-LM published of H100s.

    PYTHONPATH=tests python tests/benchmarks/scaling.py             # --check: only say whether the page is up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.benchmark_data import records
from support.pages import table, write_or_check
from support.reference_times import PADDED_VOCAB, PUBLISHED_KERNELS, job_of, published_rows

from orchestrator.planning.hardware.devices import Device, shipped
from orchestrator.planning.time.step import StepTime, estimate_time, estimate_with
from orchestrator.spec.job import JobSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "scaling.md"
REPLICAS = (2, 4, 8, 16, 32, 48, 96)
PUBLISHED_STRONG = {int(row["gpus"]): int(row["mfu_percent"]) for row in records("published", note="strong scaling")}
"""MFU in per cent by GPUs, of 177B with 1,152 sequences a step: the two ends that are stated."""


def strong(replicas: int) -> JobSpec:
    """177B in the layout of the published table, the batch as large for any number of GPUs."""
    return job_of("gpt-177b", tp=8, pp=6, dp=replicas, vp=16, micro=1, batch=1152, nodes=6 * replicas)


def published(job: JobSpec) -> StepTime:
    """On H100s, by the kernels that Megatron-LM had."""
    return estimate_with(job, PADDED_VOCAB, PUBLISHED_KERNELS, _device("H100"))


def ours(job: JobSpec) -> StepTime:
    """On H200s, by this project's runtime."""
    return estimate_time(job, PADDED_VOCAB, "transformer_engine", _device("H200"))


def _device(name: str) -> Device:
    found = shipped(name)
    assert found is not None
    return found


def page() -> str:
    """The text of the page."""
    return TEXT.format(
        weak=table(
            ["model", "GPUs", "TP", "PP", "DP", "published", "planned", "ours on H200s, planned"],
            [
                [
                    *(row.label, f"{row.job.world_size:,}", *_degrees(row.job)),
                    f"{row.tflops_per_gpu:.0f} ({row.mfu_percent} %)",
                    *(_speed(time(row.job)) for time in (published, ours)),
                ]
                for row in published_rows()
            ],
        ),
        strong=table(
            ["GPUs", "DP", "published", "planned", "s per step", "ours on H200s, planned", "s per step"],
            [_of_strong(strong(replicas)) for replicas in REPLICAS],
        ),
    )


def _of_strong(job: JobSpec) -> list[str]:
    gpus, theirs, own = job.world_size, published(job), ours(job)
    stated = f"{PUBLISHED_STRONG[gpus]} %" if gpus in PUBLISHED_STRONG else "-"
    cells = [f"{gpus:,}", str(job.data_parallel_size), stated]
    for time in (theirs, own):
        cells += [_speed(time), f"{time.step_seconds:.1f}"]
    return cells


def _degrees(job: JobSpec) -> list[str]:
    degrees = job.parallelism
    sizes = (degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size, job.data_parallel_size)
    return [str(size) for size in sizes]


def _speed(time: StepTime) -> str:
    """TFLOP/s per GPU, and MFU."""
    return f"{time.tflops_per_gpu:.0f} ({time.mfu or 0.0:.1%})".replace("%", " %")


TEXT = """# Weak and strong scaling, as planned

Written by `tests/benchmarks/scaling.py` from the model of a step's time; a test fails when it is out of date.
Sequence 4,096, vocabulary 131,072, bf16; TFLOP/s per GPU, and MFU of the dense bf16 peak,
989 TFLOP/s. **Planned, not measured**: this project has not had more than four GPUs. What was measured on one, two and
four is in the [results](results.md) and the [roofline](roofline.md).

## Weak: larger models on more GPUs
Megatron-LM's published table (H100s). "Planned" is for its kernels; four sequences at once where there are no stages
and one layer per virtual stage where there are, which the table does not say.

{weak}

## Strong: 177B, 1,152 sequences a step, on more GPUs
Published are the two ends, 47 % on 96 GPUs and 42 % on 4,608. Nothing of the model of time was fitted on them. With
more replicas each has fewer micro-batches to fill the six stages with, and less to hide the reduction of
gradients behind.

{strong}
"""


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
