"""What `calibrate` takes from the machine and from runs."""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.api.starts.run_sentences import label
from orchestrator.errors import JobError, MissingDependency, UserError
from orchestrator.kernel_selection.auto_values import as_started
from orchestrator.planning.time.fits.fitting import Observation
from orchestrator.planning.time.kernels.accesses import kernels_of
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.tracking.measurements.metrics import read_records

PROGRAM = "orchestrator.runtime.calibration"

_WARM_UP = 2
"""Steps after each start that are not counted: the first compiles, the second makes the last buffers."""
_TIMEOUT = 900


@dataclass(frozen=True)
class MeasuredRun:
    """The step time of a run, and on what."""

    label: str
    device: str
    observation: Observation


def measure_machine(seconds: float, *, cpu: bool) -> dict[str, Any]:
    """What the program measures here. Raises MissingDependency without torch, and JobError when it fails."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependency(
            "calibration needs torch, which this Python lacks: pip install 'megatron-orchestrator[train]'"
        )
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        output = Path(folder) / "measured.json"
        arguments = module_command(PROGRAM, "--output", str(output), f"--seconds={seconds}")
        try:
            finished = subprocess.run(
                [*arguments, *(["--cpu"] if cpu else [])],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired as error:
            raise JobError(f"the measurements did not end within {_TIMEOUT} s", code="measurement_timed_out") from error
        if finished.returncode or not output.exists():
            lines = [line for line in finished.stderr.splitlines() if line.strip()]
            raise JobError(
                f"the measurements failed: {lines[-1].strip() if lines else 'they said nothing'}",
                code="measurement_failed",
            )
        found: dict[str, Any] = json.loads(output.read_text())
    return found


def measured_run(run: RunDir) -> MeasuredRun:
    """The median step time of a run at its full batch size. Raises UserError when it has too few steps, or multiplied
    in FP8 or FP4: a device's efficiencies are of its dtypes, and what these reach beside them is not fitted.
    """
    job = load_resolved(run.resolved())
    if (narrow := job.precision.quantization) is not None:
        kind = narrow.field.upper()
        raise UserError(
            f"run {label(run)} computed its products in {kind}, but efficiencies are for bf16: calibrate with a run "
            f"without precision.{narrow.field}; plans of {kind} jobs use the corrected profile too",
            code="measured_in_fp8",
        )
    told = ("time", "iteration", "layers", "device")
    starts = [each for each in run.events().all(Started) if None not in (getattr(each, name) for name in told)]
    if not starts:
        raise UserError(f"run {label(run)} was never started: it has no step times", code="run_not_started")
    starts = _alike(starts)
    seconds = dict(_at_full_size(run, job, starts))
    if not seconds:
        raise UserError(
            f"run {label(run)} has no step time at its full batch size after its first {_WARM_UP} steps: "
            "let it run longer, with a small tracking.log_interval",
            code="no_step_times",
        )
    job = as_started(job, starts[-1].choices)
    kernels = kernels_of(job, "torch" if starts[-1].layers == "torch" else "transformer_engine")
    observation = Observation(job, vocabulary(job).padded_size, kernels, statistics.median(seconds.values()))
    return MeasuredRun(label(run), str(starts[-1].device), observation)


def _at_full_size(run: RunDir, job: JobSpec, starts: list[Started]) -> Iterator[tuple[int, float]]:
    """Iteration and step time of the records of these starts. A record is a mean over the steps since the one before,
    or since its start: it counts where all of these had the full batch size and none warmed up.
    """
    schedule = BatchSchedule.of(job)
    position, following = 0, list(starts)
    warm_until = math.inf
    for record in read_records(run.metrics_file):
        while following and (following[0].time or 0.0) <= record.time:
            position = following.pop(0).iteration or 0
            warm_until = position + _WARM_UP
        value = record.values.get("throughput/step_seconds")
        if value is None:
            continue
        first, position = position + 1, record.iteration
        if first > warm_until and schedule.global_batch_size(schedule.samples_at(first - 1)) == job.global_batch_size:
            yield record.iteration, value


def _alike(starts: list[Started]) -> list[Started]:
    """The last starts, as far back as they computed on the same by the same kernels."""
    others = [index for index, start in enumerate(starts) if start.choices != starts[-1].choices]
    return starts[others[-1] + 1 :] if others else starts
