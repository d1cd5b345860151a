"""Experts beside Megatron-LM's own trainer, in turns on the same GPUs: milliseconds per step, memory, and losses.

Both train the same samples from the same weights (benchmarks/megatron_trainer.py says what is Megatron-LM's). That
needs a checkout of Megatron-LM, of the version of the megatron-core that is there:

    MEGATRON_LM=~/Megatron-LM MEASURED=runs/measured python -m pytest tests/gpu/test_beside_trainer.py -s

What is measured is kept in $MEASURED, each turn by itself, and the same call again goes on where the last one ended.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import Measured, Meter, needs_gpus, needs_memory, padded_vocab
from support.peer import TRAINER, TRAINER_ROWS, peer_meter

from orchestrator.planning.flops import model_flops, peak_flops
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

WARM_UP, STEPS = 6, 12
TURNS = int(os.environ.get("TURNS", "2"))
FIRST_APART, LAST_APART = 5e-4, 0.01
"""How far ours may be from the trainer, relatively: in the first step, which the weights alone decide, and in the mean
of the last six."""


def row_job(name: str) -> JobSpec:
    """A row as a job."""
    return TRAINER_ROWS[name].at_size(f"beside-{name}", WARM_UP + STEPS)


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [row_job(name) for name in TRAINER_ROWS]


@pytest.fixture(scope="module")
def turns(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Meter, Meter]]:
    """What measures ours and the trainer, for each turn."""
    scratch = tmp_path_factory.mktemp("beside")
    folder = Path(os.environ.get("MEASURED") or scratch / "kept")
    meters = []
    for turn in map(str, range(TURNS)):
        ours = Meter(ranks.starter, scratch / "ours" / turn, folder / f"ours-{turn}", warm_up=WARM_UP)
        trainer = peer_meter(ranks.starter, scratch / "trainer" / turn, folder / f"trainer-{turn}", WARM_UP, TRAINER)
        meters.append((ours, trainer))
    return meters


def said(job: JobSpec, found: list[Measured]) -> str:
    """Medians of each turn, fastest and slowest of all steps, the share of the bf16 peak, memory."""
    medians = [each.interval_seconds for each in found]
    flops = model_flops(job, job.global_batch_size * job.model.seq_length, padded_vocab(job)) / job.world_size
    peak = peak_flops(found[0].device, "bf16")
    share = f", {flops / statistics.mean(medians) / peak:.1%}" if peak else ""
    spread = f"{min(each.spread[0] for each in found) * 1e3:.0f} to {max(each.spread[1] for each in found) * 1e3:.0f}"
    memory = max(max(each.peak_bytes) for each in found) / 2**30
    return f"{', '.join(f'{median * 1e3:.0f}' for median in medians)} ms ({spread}){share}, {memory:.1f} GiB"


@pytest.mark.parametrize("name", TRAINER_ROWS)
def test_ours_is_not_slower(name: str, turns: list[tuple[Meter, Meter]]) -> None:
    job = row_job(name)
    needs_gpus(job.world_size, "transformer_engine")
    needs_memory(job, "transformer_engine")
    if "MEGATRON_LM" not in os.environ:
        pytest.skip("MEGATRON_LM names no checkout of Megatron-LM")
    ours, trainer = [], []
    for meters in turns:
        for meter, found in zip(meters, (ours, trainer), strict=True):
            measured = meter.measure(job)
            assert measured.outcome == "measured", measured.message
            found.append(measured)
    first, last = (
        abs(ours[0].losses[0] / trainer[0].losses[0] - 1),
        abs(statistics.mean(ours[0].losses[-6:]) / statistics.mean(trainer[0].losses[-6:]) - 1),
    )
    print(f"\nRESULT {name} on {ours[0].device}: ours {said(job, ours)}; trainer {said(job, trainer)}")
    print(f"RESULT {name}: losses {first:.1e} apart in the first step and {last:.1e} in the last six")
    assert ours[0].layers == "transformer_engine"
    assert first < FIRST_APART
    assert last < LAST_APART
    assert statistics.mean(each.interval_seconds for each in ours) <= statistics.mean(
        each.interval_seconds for each in trainer
    )
