"""Training a shortened job twice, once undisturbed and once killed and resumed, and comparing every loss."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import JobError
from orchestrator.launch.local.launcher import Watcher, launch
from orchestrator.launch.processes.launch_processes import ranks_of
from orchestrator.launch.processes.stop_request import caught_signals, request_stop, sigterm_as_ctrl_c
from orchestrator.launch.runs import create_run
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.run_directory.events.types import Resumed, Started
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_text
from orchestrator.tracking.measurements.metrics import MetricTail, read_series

_ATTEMPTS = 3
_POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Step:
    """The loss of one step in both trainings; None where it is missing."""

    iteration: int
    reference: float | None
    resumed: float | None

    @property
    def equal(self) -> bool:
        """Bitwise: NaN equals NaN, and nothing is rounded."""
        return self.reference is not None and repr(self.reference) == repr(self.resumed)


@dataclass(frozen=True)
class Drill:
    """Results."""

    steps: list[Step]
    killed_at: int
    resumed_from: int
    folder: Path

    @property
    def equal(self) -> bool:
        """Whether every step's loss is there and the same."""
        return all(step.equal for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "equal": self.equal,
            "killed_at": self.killed_at,
            "resumed_from": self.resumed_from,
            "steps": [{**asdict(step), "equal": step.equal} for step in self.steps],
            "folder": None if self.equal else str(self.folder),
        }


def shortened(job: JobSpec, iterations: int, kill_at: int, runs_dir: Path) -> JobSpec:
    """The job with only its first steps, saved once before the kill; everything that shapes the losses is as it was.

    Raises UserError where `checkpoint.pretrained` is not there.
    """
    data: dict[str, Any] = json.loads(dump_resolved(job))
    schedule, full = data["schedule"], BatchSchedule.of(job)
    length = min(iterations, full.train_iters)
    if schedule["train_iters"] is not None:
        schedule["train_iters"] = length
        if schedule["lr_decay_samples"] is None:
            schedule["lr_decay_iters"] = schedule["lr_decay_iters"] or full.train_iters
    else:
        schedule |= {"train_samples": full.samples_at(length), "train_tokens": None, "drop_last": False}
        if schedule["lr_decay_iters"] is None:
            schedule["lr_decay_samples"] = schedule["lr_decay_samples"] or full.written_samples
    data["checkpoint"] |= {"save_interval": max(1, kill_at - 2), "save_seconds": None, "keep_last": iterations}
    if job.checkpoint.pretrained is not None:  # a name is that of a job beside this one, not beside the drill's runs
        data["checkpoint"]["pretrained"] = str(find_weights(job.checkpoint.pretrained, runs_dir))
    data["tracking"] = {"mlflow": False, "log_interval": 1}
    data["notifications"] = {}
    data["data"]["cache_dir"] = data["data"]["cache_dir"] or str(runs_dir.absolute() / ".cache" / "index")
    return load_text(json.dumps(data), f"the first {length} steps of {job.name}").job


def drill(
    job: JobSpec,
    *,
    kill_at: int,
    folder: Path,
    tell: Callable[[str], object],
    module: str = RUNTIME_MODULE,
) -> Drill:
    """Run it in a folder of its own under `folder`, which is kept only for a person to look at what went wrong.

    Raises JobError when one of the trainings fails by itself, and KeyboardInterrupt after a clean end when a person
    asks to stop.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with sigterm_as_ctrl_c():  # between two trainings nothing else hears it, and the folder would stay
        place = Path(tempfile.mkdtemp(prefix=".drill-", dir=folder.absolute()))
        try:
            result = _drilled(job, kill_at, place, tell, module)
            if result.equal:
                shutil.rmtree(place)
        except KeyboardInterrupt:
            with caught_signals():  # a second one would leave half of it
                shutil.rmtree(place, ignore_errors=True)  # that it was stopped matters more
            raise
    return result


def _drilled(job: JobSpec, kill_at: int, place: Path, tell: Callable[[str], object], module: str) -> Drill:
    total = BatchSchedule.of(job).train_iters
    tell(f"training {total} steps undisturbed")
    reference = create_run(job, dump_resolved(job), place)
    _must("the undisturbed training", _train(reference, job, module), reference, "completed")
    tell(f"training again, and killing every rank after step {kill_at}")
    job = _as_it_chose(job, reference)
    victim = _killed_run(job, kill_at, place, module)
    saved = committed(victim)
    if not saved:
        raise JobError(
            f"the training was killed before its first checkpoint was whole\n      its run: {victim.path}",
            code="killed_before_checkpoint",
        )
    tell(f"resuming from the checkpoint of step {saved[-1].iteration}")
    _must("the resumed training", _train(victim, job, module), victim, "completed")
    losses, resumed = dict(read_series(reference, "train/loss")), dict(read_series(victim, "train/loss"))
    steps = [Step(number, losses.get(number), resumed.get(number)) for number in range(1, total + 1)]
    return Drill(steps, kill_at, _resumed_from(victim), place)


def _as_it_chose(job: JobSpec, run: RunDir) -> JobSpec:
    """Pins what a run chose for itself, by its host's speed among others: a run keeps that when it is resumed, and
    another run may choose otherwise.
    """
    started = run.events().first(Started)
    left_open = {"layers": "auto", "cuda_graphs": None}
    chosen = {
        name: value
        for name, word in left_open.items()
        if getattr(job.runtime, name) == word and (value := getattr(started, name, None)) is not None
    }
    return job.changed(runtime=chosen)


def _train(run: RunDir, job: JobSpec, module: str, on_launched: Callable[[str], None] = lambda launch_id: None) -> Exit:
    """Raises KeyboardInterrupt when a person asked to stop; every process has ended by then."""
    watcher = _Stopping(run)
    end = launch(run, job, module=module, watcher=watcher, on_launched=on_launched)
    if watcher.was_asked:
        raise KeyboardInterrupt
    return end


class _Stopping(Watcher):
    """Ends a launch at once when somebody asks it to stop: a checkpoint would be removed with the rest."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.was_asked = False

    def poll(self) -> None:
        if not self.was_asked and self._run.stop_file.exists():
            self.was_asked = True
            request_stop(self._run, "orchestrator drill", at_once=True)


def _killed_run(job: JobSpec, kill_at: int, place: Path, module: str) -> RunDir:
    """A run whose ranks were all killed. Small steps can be over before the kill arrives: then once more."""
    for _ in range(_ATTEMPTS):
        run = create_run(job, dump_resolved(job), place)
        killer = _Killer(run, kill_at)
        try:
            end = _train(run, job, module, on_launched=killer.start)
        finally:
            killer.stop()
        if end.cause != "completed":
            return _must("the training to be killed", end, run, "killed")
    raise JobError(
        "the job ends before it can be killed: give it more steps with --iters", code="job_too_short_to_kill"
    )


def _must(what: str, end: Exit, run: RunDir, cause: str) -> RunDir:
    if end.cause != cause:
        message = f": {end.message}" if end.message else ""
        raise JobError(
            f"{what} ended differently: {cause_of(end.cause).sentence}{message}\n      its run: {run.path}",
            code="failed_drill",
        )
    return run


def _resumed_from(run: RunDir) -> int:
    resumed = run.events().first(Resumed)
    return 0 if resumed is None else resumed.iteration or 0


class _Killer:
    """Kills every rank once a step has been measured and a checkpoint before it is committed."""

    def __init__(self, run: RunDir, kill_at: int) -> None:
        self._run, self._kill_at = run, kill_at
        self._tail = MetricTail(run.metrics_file)
        self._reached = False
        self._over = threading.Event()

    def start(self, launch_id: str) -> None:
        threading.Thread(target=self._watch, args=(launch_id,), daemon=True).start()

    def stop(self) -> None:
        """The launch is over."""
        self._over.set()

    def _watch(self, launch_id: str) -> None:
        while not self._is_time():
            if self._over.wait(_POLL_SECONDS):
                return
        for pid in ranks_of(launch_id).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_time(self) -> bool:
        self._reached |= any(metric.iteration >= self._kill_at for metric in self._tail.poll())
        return self._reached and bool(committed(self._run))
