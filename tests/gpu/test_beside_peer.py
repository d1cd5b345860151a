"""Our training beside its peers', one after the other on the same GPUs: milliseconds per step, and memory.

They are the smallest loop over megatron-core's GPT with its Transformer Engine layers (benchmarks/plain_loop.py), and
torchtitan's trainer with its Llama (benchmarks/titan_loop.py). That needs the package torchtitan, which is no
dependency of this project, of a version that runs with the torch that is there: 0.2.2 is of the time of torch 2.11.
What is measured is kept in $MEASURED, ours and each peer's by themselves, and the same call again goes on where the
last one ended:

    MEASURED=runs/measured python -m pytest tests/gpu/test_beside_peer.py -s
"""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter, needs_gpus, needs_memory, padded_vocab
from support.peer import PLAIN_LOOP, ROWS, TITAN_LOOP, TITAN_ROWS, peer_meter

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

WARM_UP, STEPS = 5, 16
BOTH_ROWS = {**ROWS, **TITAN_ROWS}


def row_job(name: str) -> JobSpec:
    """A row as a job."""
    return BOTH_ROWS[name].at_size(f"beside-{name}", WARM_UP + STEPS)


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [row_job(name) for name in BOTH_ROWS]


@pytest.fixture(scope="module")
def meters(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Meter]:
    """What measures ours, and what measures each peer."""
    scratch, kept = tmp_path_factory.mktemp("beside"), os.environ.get("MEASURED")
    folder = Path(kept) if kept else scratch / "kept"
    peers = {"plain": PLAIN_LOOP, "torchtitan": TITAN_LOOP}
    return {
        "ours": Meter(ranks.starter, scratch / "ours", folder / "ours", warm_up=WARM_UP),
        **{
            peer: peer_meter(ranks.starter, scratch / peer, folder / peer, WARM_UP, program)
            for peer, program in peers.items()
        },
    }


def share(job: JobSpec, measured: Measured) -> float:
    """Of the dense bf16 peak, in FP8 too."""
    flops = model_flops(job, job.global_batch_size * job.model.seq_length, padded_vocab(job)) / job.world_size
    return flops / measured.interval_seconds / (peak_flops(measured.device, "bf16") or math.nan)


def said(job: JobSpec, measured: Measured) -> str:
    if measured.outcome != "measured":
        return "out of memory"
    return f"{measured.interval_seconds * 1e3:.1f} ms ({share(job, measured):.1%})"


@pytest.mark.parametrize("name", BOTH_ROWS)
def test_ours_is_ahead(name: str, meters: dict[str, Meter]) -> None:
    job, peer = row_job(name), "torchtitan" if name in TITAN_ROWS else "plain"
    needs_gpus(job.world_size, "transformer_engine")
    needs_memory(job, "transformer_engine")
    if peer == "torchtitan" and importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    ours, other = (meters[each].measure(job) for each in ("ours", peer))
    assert ours.outcome == "measured", ours.message
    assert other.outcome in ("measured", "out_of_memory"), other.message
    ahead = other.interval_seconds / ours.interval_seconds - 1 if other.outcome == "measured" else math.inf
    memory = ", ".join(f"{max(each.peak_bytes, default=0) / 2**30:.1f} GiB" for each in (ours, other))
    print(
        f"\nRESULT {name}: ours {said(job, ours)}, {peer} {said(job, other)}, ahead by {100 * ahead:.1f} %; "
        f"memory {memory}; fastest to slowest {ours.spread[0] * 1e3:.1f} to {ours.spread[1] * 1e3:.1f} and "
        f"{other.spread[0] * 1e3:.1f} to {other.spread[1] * 1e3:.1f} ms"
    )
    assert ours.layers == "transformer_engine"
    assert ahead > 0
