"""Our training beside megatron-core itself, one after the other on the same GPUs: milliseconds per step, and memory.

The peer is the smallest loop over megatron-core's GPT with its Transformer Engine layers (benchmarks/plain_loop.py).
What is measured is kept in $MEASURED, ours and the peer's by themselves, and the same call again goes on where the last
one ended:

    MEASURED=runs/measured python -m pytest tests/gpu/test_beside_peer.py -s
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter, needs_gpus, needs_memory, padded_vocab
from support.peer import ROWS, peer_meter

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

WARM_UP, STEPS = 5, 16


def row_job(name: str) -> JobSpec:
    """A row as a job."""
    return ROWS[name].at_size(f"beside-{name}", WARM_UP + STEPS)


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
    needs_memory(job, "transformer_engine")
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
