"""Our training beside megatron-core itself, one after the other on the same GPUs: milliseconds per step, and memory.

The peer is the smallest loop over megatron-core's GPT with its Transformer Engine layers (benchmarks/plain_loop.py).
What is measured is kept in $MEASURED, ours and the peer's by themselves, and the same call again goes on where the last
one ended:

    MEASURED=runs/measured python -m pytest tests/gpu/test_beside_peer.py -s
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter, needs_gpus, padded_vocab
from support.peer import peer_meter

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

JOBS = Path(__file__).parents[2] / "jobs"
WARM_UP, STEPS = 5, 16


@dataclass(frozen=True)
class Row:
    """What is written over a job of `jobs`."""

    job: str
    gpus: int
    micro_batch: int
    global_batch: int
    changes: Sequence[str] = ()


TP2 = ("parallelism.tensor_model_parallel_size=2", "parallelism.sequence_parallel=true")
TP4 = ("parallelism.tensor_model_parallel_size=4", "parallelism.sequence_parallel=true")
TP1 = ("parallelism.tensor_model_parallel_size=1", "parallelism.sequence_parallel=false")
PP2 = ("parallelism.pipeline_model_parallel_size=2",)
FP8 = ("precision.fp8={}",)
ROWS = {
    "1.7b": Row("gpt-1.7b", 1, 4, 4),
    "1.7b-fp8": Row("gpt-1.7b", 1, 4, 4, FP8),
    "1.7b-dp2": Row("gpt-1.7b", 2, 4, 8),
    "7.1b-tp2": Row("gpt-7.1b", 2, 4, 4, TP2),
    "7.1b-tp2-fp8": Row("gpt-7.1b", 2, 4, 4, (*TP2, *FP8)),
    "1.7b-pp2-vp2": Row("gpt-1.7b", 2, 2, 16, (*PP2, "parallelism.virtual_pipeline_model_parallel_size=2")),
    "1.7b-dp4": Row("gpt-1.7b", 4, 4, 16),
    "7.1b-tp2-dp2": Row("gpt-7.1b", 4, 4, 8, TP2),
    "7.1b-tp2-dp2-fp8": Row("gpt-7.1b", 4, 4, 8, (*TP2, *FP8)),
    "7.1b-dp4": Row("gpt-7.1b", 4, 2, 8, TP1),
    "7.1b-tp2-pp2": Row("gpt-7.1b", 4, 1, 16, (*TP2, *PP2)),
    "16b-tp4": Row("gpt-7.1b", 4, 4, 4, ("model.preset=gpt-16b", *TP4)),
}
"""The rows of the bars, and of two GPUs one of each kind of parallelism. 7.1b-dp4 is the tuner's layout: the same batch
as 7.1b-tp2-dp2."""


def row_job(name: str) -> JobSpec:
    """A row as a job."""
    row = ROWS[name]
    changes = [
        f"name=beside-{name.replace('.', '-')}",
        f"launch.gpus_per_node={row.gpus}",
        f"batch.micro_batch_size={row.micro_batch}",
        f"batch.global_batch_size={row.global_batch}",
        f"schedule.train_iters={WARM_UP + STEPS}",
        "tracking.mlflow=false",
    ]
    return load_job([JOBS / f"{row.job}.yaml"], [*changes, *row.changes]).job


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [row_job(name) for name in ROWS]


@pytest.fixture(scope="module")
def both(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Meter, Meter]:
    """What measures ours, and what measures the peer."""
    scratch, kept = tmp_path_factory.mktemp("beside"), os.environ.get("MEASURED")
    folder = Path(kept) if kept else scratch / "kept"
    ours = Meter(ranks.starter, scratch / "ours", folder / "ours", warm_up=WARM_UP)
    return ours, peer_meter(ranks.starter, scratch / "plain", folder / "plain", warm_up=WARM_UP)


def share(job: JobSpec, measured: Measured) -> float:
    """Of the dense bf16 peak, in FP8 too."""
    flops = model_flops(job, job.global_batch_size * job.model.seq_length, padded_vocab(job)) / job.world_size
    return flops / measured.interval_seconds / (peak_flops(measured.device, "bf16") or math.nan)


def said(job: JobSpec, measured: Measured) -> str:
    if measured.outcome != "measured":
        return "out of memory"
    return f"{measured.interval_seconds * 1e3:.1f} ms ({share(job, measured):.1%})"


@pytest.mark.parametrize("name", ROWS)
def test_ours_is_ahead(name: str, both: tuple[Meter, Meter]) -> None:
    job = row_job(name)
    needs_gpus(job.world_size, "transformer_engine")
    ours, plain = (meter.measure(job) for meter in both)
    assert ours.outcome == "measured", ours.message
    assert plain.outcome in ("measured", "out_of_memory"), plain.message
    ahead = plain.interval_seconds / ours.interval_seconds - 1 if plain.outcome == "measured" else math.inf
    memory = ", ".join(f"{max(each.peak_bytes, default=0) / 2**30:.1f} GiB" for each in (ours, plain))
    print(
        f"\nRESULT {name}: ours {said(job, ours)}, plain {said(job, plain)}, ahead by {100 * ahead:.1f} %; "
        f"memory {memory}; fastest to slowest {ours.spread[0] * 1e3:.1f} to {ours.spread[1] * 1e3:.1f} and "
        f"{plain.spread[0] * 1e3:.1f} to {plain.spread[1] * 1e3:.1f} ms"
    )
    assert ours.layers == "transformer_engine"
    assert ahead > 0
