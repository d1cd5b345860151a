"""The tuner against measured steps: gpt-7.1b on 4 GPUs at one global batch, every layout that could be the best.

This takes longer than one call on a borrowed machine may. What is measured is kept in $TUNER_TRIALS/gpt-7.1b-tune, and
the same call again goes on where the last one ended:

    TUNER_TRIALS=runs/tuner python -m pytest tests/gpu/test_tuner.py -s

Where the folder has to be carried from one machine to the next, `measured.jsonl` in it is all that counts.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from orchestrator.planning.hardware import device_named
from orchestrator.spec.loading import load_job
from orchestrator.tuning.estimates import Candidate, Planned
from orchestrator.tuning.layout import on_machines
from orchestrator.tuning.measuring import Measuring
from orchestrator.tuning.search import search
from orchestrator.tuning.space import Space
from orchestrator.tuning.trial import Trial, Trials

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

GPUS, GLOBAL_BATCH = 4, 16
SECONDS = float(os.environ.get("TUNER_SECONDS", "480"))
"""After this no further trial is begun, so that a call ends in time."""
STEPS = 5
HOPELESS = 1.25
"""Layouts estimated to take this many times the best's estimate are not measured: no estimate is that far off."""
BAR = 1.03


@dataclass(frozen=True)
class Sweep:
    """What is measured, and how."""

    space: Space
    candidates: tuple[Candidate, ...]
    estimates: Planned
    trials: Trials

    def known(self) -> list[tuple[Candidate, Trial]]:
        """What was tried so far."""
        found = ((each, self.trials.known(each.job)) for each in self.candidates)
        return [(each, trial) for each, trial in found if trial is not None]


def plan_sweep(gpu: str, layers: str, runs_dir: Path) -> Sweep:
    """Every TP, PP, VP and micro-batch, each with the least recomputation that may fit: more is never faster."""
    changes = ["tracking.mlflow=false", f"runtime.layers={layers}"]
    loaded = load_job([Path(__file__).parents[2] / "jobs" / "gpt-7.1b.yaml"], changes)
    job = on_machines(loaded.job, 1, GPUS)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"global_batch_size": GLOBAL_BATCH})})
    assert job.model.vocab_size is not None
    estimates = Planned(device_named(gpu), "torch" if layers == "torch" else "transformer_engine", job.model.vocab_size)
    space = Space(job)
    found = search(space, estimates, tight=True)
    least: dict[tuple[int, ...], Candidate] = {}
    for each in found.fitting:  # the fastest first
        layout = each.layout
        if layout.use_distributed_optimizer or layout.model_parallel_size == GPUS:
            least.setdefault((layout.tp, layout.pp, layout.vp, layout.micro_batch_size), each)
    best = found.fitting[0].step_seconds
    chosen = tuple(each for each in least.values() if each.step_seconds <= HOPELESS * best)
    return Sweep(space, chosen, estimates, Trials(runs_dir, job.model.vocab_size, STEPS))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    if torch.cuda.device_count() < GPUS:
        pytest.skip(f"needs {GPUS} GPUs, this machine has {torch.cuda.device_count()}")
    folder = os.environ.get("TUNER_TRIALS")
    runs_dir = Path(folder) if folder else tmp_path_factory.mktemp("tuner")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    return plan_sweep(torch.cuda.get_device_name(0), os.environ.get("TUNER_LAYERS", "torch"), runs_dir)


def describe(candidate: Candidate) -> str:
    layout = candidate.layout
    return (
        f"TP {layout.tp} PP {layout.pp} VP {layout.vp} micro {layout.micro_batch_size} "
        f"recompute {layout.recompute.describe()}"
    )


def measured_sweep(sweep: Sweep) -> list[tuple[float, Candidate]]:
    """Measure what is missing: (seconds, layout), the fastest first. Skips the test while something is missing."""
    began = time.monotonic()
    for each in sweep.candidates:
        if sweep.trials.known(each.job) is not None:
            continue
        if time.monotonic() - began > SECONDS:
            left = len(sweep.candidates) - len(sweep.known())
            pytest.skip(f"{left} of {len(sweep.candidates)} layouts are not measured yet: run it again")
        trial = sweep.trials.run(each.job)
        if trial.outcome == "measured":
            peak = (trial.peak_bytes or 0) / 2**30
            print(
                f"\nRESULT {describe(each)}: {trial.step_seconds:.3f} s (predicted {each.step_seconds:.3f}), "
                f"{peak:.1f} GiB on rank 0 (predicted {each.memory.stages[0].peak_bytes / 2**30:.1f})"
            )
        else:
            print(f"\nRESULT {describe(each)}: {trial.outcome}: {trial.message.splitlines()[0]}")
    known = [(trial.step_seconds, each) for each, trial in sweep.known() if trial.step_seconds is not None]
    return sorted(known, key=lambda pair: pair[0])


def test_the_tuner_picks_one_of_the_best_by_estimates_alone(sweep: Sweep) -> None:
    known = measured_sweep(sweep)
    seconds, best = known[0]
    pick = search(sweep.space, sweep.estimates).fitting[0]
    trial = sweep.trials.known(pick.job) or sweep.trials.run(pick.job)
    assert trial.step_seconds is not None, trial.message
    print(
        f"\nRESULT tuner by estimates: {describe(pick)} {trial.step_seconds:.3f} s, best of {len(known)} measured: "
        f"{describe(best)} {seconds:.3f} s, ratio {trial.step_seconds / seconds:.4f}"
    )
    assert trial.step_seconds <= BAR * seconds


def test_the_tuner_picks_one_of_the_best_when_it_measures(sweep: Sweep) -> None:
    seconds, _ = measured_sweep(sweep)[0]
    found = search(sweep.space, sweep.estimates, tight=True)
    measuring = Measuring(found.fitting, sweep.estimates.memory_bytes)
    measuring.run(lambda each: sweep.trials.known(each.job) or sweep.trials.run(each.job), 3)
    pick = measuring.ranking()[0]
    print(
        f"\nRESULT tuner with {len(measuring.trials)} trials: {describe(pick.candidate)} {pick.step_seconds:.3f} s, "
        f"ratio {pick.step_seconds / seconds:.4f}"
    )
    assert pick.is_measured
    assert pick.step_seconds <= BAR * seconds
