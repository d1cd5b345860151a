"""The tuner against measured steps: a model on some GPUs at one global batch, every layout that could be the best.

This may take longer than one call on a borrowed machine. What is measured is kept in $MEASURED, and the same call again
goes on where the last one ended:

    MEASURED=runs/measured python -m pytest tests/gpu/test_tuner.py -s -k 7.1b-4-gpus-torch
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import pytest
from support.measured import WARM_UP, Measured, Meter, gpu_name, needs_gpus
from support.shipped import SHIPPED

from orchestrator.planning.hardware import device_named
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job
from orchestrator.spec.sections.runtime import Layers
from orchestrator.tuning.candidate_trials import CandidateTrials
from orchestrator.tuning.estimates import Candidate, PlanEstimates
from orchestrator.tuning.layout import on_machines
from orchestrator.tuning.search import WHOLE, search
from orchestrator.tuning.space import Space
from orchestrator.tuning.trial import Trial, trial_job

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

SECONDS = float(os.environ.get("TUNER_SECONDS", "480"))
"""After this no further layout is measured, so that a call ends in time."""
STEPS = 3
HOPELESS = 1.15
"""Layouts estimated to take this many times the best's estimate are not measured: no estimate is that far off."""
BAR = 1.03


@dataclass(frozen=True)
class Case:
    """What is to be trained, and on how many GPUs."""

    job: str
    gpus: int
    global_batch: int
    layers: Layers


CASES = {
    f"{job.removeprefix('gpt-')}-{gpus}-gpus-{layers}": Case(job, gpus, 16, layers)
    for job, gpus in (("gpt-7.1b", 4), ("gpt-7.1b", 2), ("gpt-1.7b", 2))
    for layers in ("torch", "transformer_engine")
}


@dataclass(frozen=True)
class Sweep:
    """What is measured, and how."""

    space: Space
    candidates: tuple[Candidate, ...]
    estimates: PlanEstimates
    meter: Meter
    until: float
    """By time.monotonic(): when no further layout is begun."""

    def job(self, candidate: Candidate) -> JobSpec:
        """A candidate on random tokens and for a few steps, as the tuner tries it."""
        job = trial_job(candidate.job, self.estimates.vocab_size, STEPS)
        short = job.schedule.model_copy(update={"train_iters": WARM_UP + STEPS})
        return job.model_copy(update={"schedule": short})

    def known(self) -> list[tuple[Candidate, Measured]]:
        """What was measured so far."""
        found = ((each, self.meter.known(self.job(each))) for each in self.candidates)
        return [(each, measured) for each, measured in found if measured is not None]

    def trial(self, candidate: Candidate) -> Trial:
        """What the tuner learns from trying a layout."""
        measured = self.meter.measure(self.job(candidate))
        if measured.outcome != "measured":
            return Trial(measured.outcome, message=measured.message)
        return Trial("measured", step_seconds=measured.step_seconds, steps=STEPS, peak_bytes=measured.peak_bytes[0])


def plan_sweep(case: Case, gpu: str, meter: Meter, until: float) -> Sweep:
    """Every TP, PP, VP and micro-batch, each with the least recomputation that may fit: more is never faster."""
    changes = ["tracking.mlflow=false", f"runtime.layers={case.layers}"]
    loaded = load_job([SHIPPED[case.job]], changes)
    job = on_machines(loaded.job, 1, case.gpus)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"global_batch_size": case.global_batch})})
    assert job.model.vocab_size is not None
    estimates = PlanEstimates(device_named(gpu), case.layers, job.model.vocab_size)
    space = Space(job)
    found = search(space, estimates, WHOLE)
    least: dict[tuple[int, ...], Candidate] = {}
    for each in found.fitting:  # the fastest first
        layout = each.layout
        if layout.use_distributed_optimizer or layout.model_parallel_size == case.gpus:
            least.setdefault((layout.tp, layout.pp, layout.vp, layout.micro_batch_size), each)
    best = found.fitting[0].step_seconds
    chosen = tuple(each for each in least.values() if each.step_seconds <= HOPELESS * best)
    return Sweep(space, chosen, estimates, meter, until)


@pytest.fixture(scope="module")
def until() -> float:
    return time.monotonic() + SECONDS


@pytest.fixture(scope="module", params=CASES)
def sweep(request: pytest.FixtureRequest, meter: Meter, until: float) -> Sweep:
    case = CASES[request.param]
    needs_gpus(case.gpus, case.layers)
    return plan_sweep(case, gpu_name(), meter, until)


def describe(candidate: Candidate) -> str:
    layout = candidate.layout
    return (
        f"TP {layout.tp} PP {layout.pp} VP {layout.vp} micro {layout.micro_batch_size} "
        f"SP {'yes' if layout.sequence_parallel else 'no'} recompute {layout.recompute.describe()}"
        f"{' joined loss' if layout.joins_loss else ''}"
    )


def measured_sweep(sweep: Sweep) -> list[tuple[float, Candidate]]:
    """Measure what is missing: (seconds, layout), the fastest first. Skips the test while something is missing."""
    sweep.meter.measure_all((sweep.job(each) for each in sweep.candidates), sweep.until - time.monotonic())
    known = sweep.known()
    for each, measured in known:
        if measured.outcome == "measured":
            print(
                f"\nRESULT {describe(each)}: {measured.step_seconds:.3f} s (predicted {each.step_seconds:.3f}), "
                f"{measured.peak_bytes[0] / 2**30:.1f} GiB on the first stage "
                f"(predicted {each.memory.stages[0].peak_bytes / 2**30:.1f})"
            )
        else:
            print(f"\nRESULT {describe(each)}: {measured.outcome}: {measured.message[-300:]}")
    if len(known) < len(sweep.candidates):
        pytest.skip(f"{len(sweep.candidates) - len(known)} of {len(sweep.candidates)} layouts are not measured yet")
    return sorted(
        ((measured.step_seconds, each) for each, measured in known if measured.outcome == "measured"),
        key=lambda pair: pair[0],
    )


def test_the_tuner_picks_one_of_the_best_by_estimates_alone(sweep: Sweep) -> None:
    known = measured_sweep(sweep)
    seconds, best = known[0]
    pick = search(sweep.space, sweep.estimates).fitting[0]
    trial = sweep.trial(pick)
    assert trial.step_seconds is not None, trial.message
    print(
        f"\nRESULT tuner by estimates: {describe(pick)} {trial.step_seconds:.3f} s, best of {len(known)} measured: "
        f"{describe(best)} {seconds:.3f} s, ratio {trial.step_seconds / seconds:.4f}"
    )
    assert trial.step_seconds <= BAR * seconds


def test_the_tuner_picks_one_of_the_best_when_it_measures(sweep: Sweep) -> None:
    seconds, _ = measured_sweep(sweep)[0]
    found = search(sweep.space, sweep.estimates, WHOLE)
    measuring = CandidateTrials(found.fitting, sweep.estimates.memory_bytes)
    measuring.run(sweep.trial, 3)
    pick = measuring.ranking()[0]
    print(
        f"\nRESULT tuner with {len(measuring.trials)} trials: {describe(pick.candidate)} {pick.step_seconds:.3f} s, "
        f"ratio {pick.step_seconds / seconds:.4f}"
    )
    assert pick.is_measured
    assert pick.step_seconds <= BAR * seconds
