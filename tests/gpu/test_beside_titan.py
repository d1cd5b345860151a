"""Our training beside torchtitan's, one after the other on the same GPUs: milliseconds per step, and memory.

benchmarks/titan_loop.py is torchtitan's trainer with a job of ours. It needs the package torchtitan, of a version that
runs with the torch that is there: 0.2.2 is of the time of torch 2.11. What is measured is kept in $MEASURED, as by
test_beside_peer.py:

    MEASURED=runs/measured python -m pytest tests/gpu/test_beside_titan.py -s
"""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import Meter, needs_gpus
from support.peer import TITAN_LOOP, TITAN_ROWS, peer_meter

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

WARM_UP, STEPS = 5, 16


def row_job(name: str) -> JobSpec:
    """A row as a job."""
    return TITAN_ROWS[name].at_size(f"titan-{name}", WARM_UP + STEPS)


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [row_job(name) for name in TITAN_ROWS]


@pytest.fixture(scope="module")
def both(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Meter, Meter]:
    """What measures ours, and what measures torchtitan."""
    scratch, kept = tmp_path_factory.mktemp("titan"), os.environ.get("MEASURED")
    folder = Path(kept) if kept else scratch / "kept"
    ours = Meter(ranks.starter, scratch / "ours", folder / "ours", warm_up=WARM_UP)
    return ours, peer_meter(ranks.starter, scratch / "titan", folder / "titan", WARM_UP, TITAN_LOOP)


@pytest.mark.parametrize("name", TITAN_ROWS)
def test_ours_is_ahead(name: str, both: tuple[Meter, Meter]) -> None:
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    job = row_job(name)
    needs_gpus(job.world_size, "transformer_engine")
    ours, titan = (meter.measure(job) for meter in both)
    assert ours.outcome == "measured", ours.message
    assert titan.outcome in ("measured", "out_of_memory"), titan.message
    ahead = titan.interval_seconds / ours.interval_seconds - 1 if titan.outcome == "measured" else math.inf
    said = (
        f"{each.interval_seconds * 1e3:.1f} ms ({each.spread[0] * 1e3:.1f} to {each.spread[1] * 1e3:.1f}), "
        f"{max(each.peak_bytes, default=0) / 2**30:.1f} GiB"
        for each in (ours, titan)
    )
    print(f"\nRESULT {name}: ours {next(said)}; torchtitan {next(said)}; ahead by {100 * ahead:.1f} %")
    assert ours.layers == "transformer_engine"
    assert ahead > 0
