"""Running a job for some steps that are measured, as `orchestrator run` would run it, without saving anything."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import JobError, UserError
from orchestrator.launch.local.launcher import Watcher, launch
from orchestrator.launch.runs import create_run, remove_new_run
from orchestrator.launch.short_job import short_job
from orchestrator.run_directory.exits.causes import cause_of
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

MODULE = "orchestrator.runtime.bench"
PROFILED = 3
"""Steps of one profile, as runtime/bench/measurement.py makes it."""
_PURPOSE = "bench"


@dataclass(frozen=True)
class MeasurementRequest:
    """How to measure."""

    warm_up: int
    """Steps that are not counted."""
    steps: int
    """Steps that are."""
    trace: bool = False
    """Whether a trace is wanted, for which more steps are profiled."""

    @property
    def all_steps(self) -> int:
        """Those that are profiled after the timed ones among them."""
        return self.warm_up + self.steps + PROFILED * (2 if self.trace else 1)


@dataclass(frozen=True)
class Measurement:
    """Results."""

    run: RunDir
    job: JobSpec
    """What was run."""
    request: MeasurementRequest
    result: dict[str, Any]
    """The measurement, as rank 0 wrote it; without a profile if the ranks did not get that far."""
    failure: str | None = None
    """The error that ended it after its timed steps, in the profile or the trace; None if everything was measured."""
    is_stopped: bool = False
    """It was a person who ended it."""

    @property
    def choices(self) -> dict[str, Any]:
        """What the job left open, as the event `started` of a run says it."""
        found = self._choices
        return {
            "attention_backend": "flash" if found.get("flash_attention") is True else "fused",
            "cuda_graphs": found.get("cuda_graphs") is True,
            "tp_comm_overlap": found.get("tp_comm_overlap") is True,
        }

    @property
    def _choices(self) -> dict[str, Any]:
        found: dict[str, Any] = self.result["setup"]["choices"]
        return found


def bench_job(job: JobSpec, request: MeasurementRequest, vocab_size: int | None) -> JobSpec:
    """The job as it is measured: on random tokens of a vocabulary, or on its own data where `vocab_size` is None."""
    return short_job(job, _PURPOSE, request.all_steps, vocab_size)


def new_run(job: JobSpec, request: MeasurementRequest, runs_dir: Path) -> RunDir:
    """A run directory for a measurement."""
    run = create_run(job, dump_resolved(job), runs_dir)
    run.bench.mkdir()
    write_atomically(run.bench_request, json.dumps(asdict(request)))
    return run


def measure(run: RunDir, job: JobSpec, request: MeasurementRequest, *, watcher: Watcher) -> Measurement:
    """Run it to its end.

    Raises JobError when it fails before the last of the timed steps, UserError when it cannot be started as asked, and
    KeyboardInterrupt after a clean end when a person asks to stop by then. Of what was not even started no run
    directory is left.
    """
    try:
        end = launch(run, job, watcher=watcher, module=MODULE)
    except (UserError, KeyboardInterrupt):  # the latter only before it has started: then `launch` catches signals
        remove_new_run(run)
        raise
    is_stopped = end.cause in ("stopped", "cancelled")
    said = f"{cause_of(end.cause).sentence}: {end.message}" if end.message else cause_of(end.cause).sentence
    if run.bench_result.exists():
        result = run.read_json(run.bench_result)
        return Measurement(run, job, request, result, None if end.cause == "completed" else said, is_stopped)
    if is_stopped:
        raise KeyboardInterrupt
    error = UserError if end.cause == "user_error" else JobError
    raise error(f"nothing was measured: {said}\n      its run: {run.path}")
