"""Running a layout for some steps on this machine, as `orchestrator run` would, and keeping what came of it."""

from __future__ import annotations

import shutil
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UserError
from orchestrator.launch.local.launcher import Watcher, launch
from orchestrator.launch.machine import machine_for, versions
from orchestrator.launch.processes.stop_request import request_stop, stop_at_once
from orchestrator.launch.runs import create_run, remove_new_run
from orchestrator.launch.short_job import short_job, short_name
from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.rundir import RunDir, append_line, read_lines
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.tracking.measurements.metrics import MetricTail
from orchestrator.tuning.layout import layout_of, settings_of

WARM_UP = 3
"""Steps that are not counted: they compile kernels and make buffers."""
_LEAST_STEPS = 3
ENOUGH_SECONDS = 60.0
"""Steps of a minute together tell enough, however few they are."""
_SPARE_STEPS = 200
"""A trial is ended from outside, without a checkpoint, as soon as it has done its steps: fast ones go on meanwhile."""
_TAKES_MEMORY = "in place"
"""How a run takes a GPU's memory. What ran out of it where runs took it otherwise says nothing."""
_PURPOSE = "tune"
_ASKED_BY = "orchestrator tune"

Outcome = Literal["measured", "out_of_memory", "failed"]


@dataclass(frozen=True)
class Trial:
    """What came of running a layout for some steps."""

    outcome: Outcome
    step_seconds: float | None = None
    """Median of the steps after the warm-up."""
    fastest: float | None = None
    slowest: float | None = None
    steps: int = 0
    """How many were counted."""
    peak_bytes: int | None = None
    """Most that torch had allocated on the first rank; None on the CPU."""
    message: str = ""
    """Why it could not be measured."""
    device: str = ""
    layers: str = ""


def trial_job(job: JobSpec, vocab_size: int, steps: int) -> JobSpec:
    """The job with its layout, on random tokens and for a few steps, with nothing beside them."""
    return short_job(job, _PURPOSE, WARM_UP + steps + _SPARE_STEPS, vocab_size)


def tune_name(job: JobSpec) -> str:
    """What the trials of a job are called in the folder of runs."""
    return short_name(job, _PURPOSE)


@dataclass(frozen=True)
class Trials:
    """Trials of one job below a folder of runs. What was measured before, by the same versions on the same kind of
    machine, is not measured again.
    """

    runs_dir: Path
    vocab_size: int
    steps: int = 10
    module: str = RUNTIME_MODULE

    def kept_in(self, job: JobSpec) -> Path:
        """The file that holds what was measured of this job, a line each."""
        return self.runs_dir / tune_name(job) / "measured.jsonl"

    def known(self, job: JobSpec) -> Trial | None:
        """What is known of a layout; None when it has not been tried here. What failed is tried again."""
        key = self._key(trial_job(job, self.vocab_size, self.steps))
        found = None
        for record in read_lines(self.kept_in(job)):
            if record.get("key") == key and record.get("outcome") != "failed":
                fields = {name: record[name] for name in Trial.__dataclass_fields__ if name in record}
                found = Trial(**fields)
        return found

    def run(self, job: JobSpec) -> Trial:
        """Try a layout. Running out of memory is a result, and so is any other failure of one layout alone.

        Raises UserError when no layout can be run here, and KeyboardInterrupt after a clean end when a person asks to
        stop.
        """
        short = trial_job(job, self.vocab_size, self.steps)
        run = create_run(short, dump_resolved(short), self.runs_dir)
        watcher = _Steps(run, self.steps)
        try:
            end = launch(run, short, watcher=watcher, module=self.module)
        except (UserError, KeyboardInterrupt):  # the latter only before it has started: then `launch` catches signals
            remove_new_run(run)
            raise
        if watcher.interrupted:
            shutil.rmtree(run.path)
            raise KeyboardInterrupt
        trial = _trial(run, watcher, end)
        record = {"time": time.time(), "key": self._key(short), "layout": settings_of(layout_of(job)), **asdict(trial)}
        append_line(self.kept_in(job), record)
        if trial.outcome != "failed":
            shutil.rmtree(run.path)
        if watcher.interrupted_since:
            raise KeyboardInterrupt
        return trial

    def _key(self, short: JobSpec) -> dict[str, Any]:
        """What the result depends on."""
        found = {"config": short.config_hash, "machine": machine_for(short), "versions": versions()}
        return found | {"memory": _TAKES_MEMORY}


class _Steps(Watcher):
    """Ends a launch at once, without a checkpoint, when it has done its steps, or when somebody asks it to stop."""

    def __init__(self, run: RunDir, steps: int) -> None:
        self._run, self._wanted = run, steps
        self._tail = MetricTail(run.metrics_file)
        self._asked = False
        self.seconds: list[float] = []
        self.peak_bytes: int | None = None
        self.interrupted = False
        self.interrupted_since = False
        """Somebody asked it to stop while it was ending anyway: its result counts, and there is to be no other."""

    def poll(self) -> None:
        self._read()
        if self._asked:
            self.interrupted_since = stop_at_once(self._run) != _ASKED_BY
            return
        self.interrupted = self._run.stop_file.exists()
        if self.interrupted or self.enough:
            self._asked = True
            request_stop(self._run, _ASKED_BY, at_once=True)

    @property
    def counted(self) -> list[float]:
        """Seconds of the steps that count."""
        return self.seconds[WARM_UP:][: self._wanted]

    @property
    def enough(self) -> bool:
        """Whether there is no need for more."""
        done = len(self.counted)
        return done >= self._wanted or (done >= _LEAST_STEPS and sum(self.counted) >= ENOUGH_SECONDS)

    def _read(self) -> None:
        for metric in self._tail.poll():
            if "throughput/step_seconds" in metric.values:
                self.seconds.append(metric.values["throughput/step_seconds"])
            if "memory/peak_bytes" in metric.values:
                self.peak_bytes = round(max(self.peak_bytes or 0, metric.values["memory/peak_bytes"]))


def _trial(run: RunDir, watcher: _Steps, end: Exit) -> Trial:
    started = run.events().first(Started)
    device, layers = (started.device or "", started.layers or "") if started else ("", "")
    if watcher.enough:
        counted = watcher.counted
        return Trial(
            outcome="measured",
            step_seconds=statistics.median(counted),
            fastest=min(counted),
            slowest=max(counted),
            steps=len(counted),
            peak_bytes=watcher.peak_bytes,
            device=device,
            layers=layers,
        )
    said = f"{cause_of(end.cause).sentence}: {end.message}" if end.message else cause_of(end.cause).sentence
    if end.cause in ("user_error", "held"):
        raise UserError(f"no layout can be tried here: {said}\n      its run: {run.path}", code="no_layout_to_try")
    if end.cause in ("out_of_memory", "host_out_of_memory"):
        return Trial("out_of_memory", message=said, device=device, layers=layers)
    return Trial("failed", message=f"{said}; see {run.logs}", device=device, layers=layers)
