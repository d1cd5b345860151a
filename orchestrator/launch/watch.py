"""What a person sees while a run goes on. Derived from metrics.jsonl and events.jsonl alone, by following them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TextIO

from orchestrator.files.stored_files import size_of
from orchestrator.launch.event_messages import sentence_of
from orchestrator.launch.local.launcher import Severity, Watcher
from orchestrator.planning.hardware import computing_unit
from orchestrator.quantities import clock_time, short_count
from orchestrator.run_directory.events.log import EventTail
from orchestrator.run_directory.events.types import (
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    Event,
    Exported,
    ExportFailed,
    Hang,
    Pretrained,
    Resumed,
    Started,
    StepSkipped,
    StopRequested,
)
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import Metric, MetricTail

_SECONDS_BETWEEN_LINES = 5.0
_RATE_WINDOW = 20


_OF_EVALUATION = (
    ("validation/loss", "validation loss", 4),
    ("validation/perplexity", "perplexity", 2),
    ("validation/accuracy", "accuracy", 4),
)
"""What is said of an evaluation where it is known: metric, name, digits."""


@dataclass
class Snapshot:
    """Where a run is."""

    total: int
    iteration: int = 0
    values: dict[str, float] = field(default_factory=dict)
    saved: int | None = None
    skipped: int = 0
    step_seconds: list[float] = field(default_factory=list)
    processor: str = "GPU"
    """What each process trains on, where speeds are told of one: on the CPU it is the process itself."""

    def take(self, metric: Metric) -> None:
        """Take in a measurement."""
        self.iteration = metric.iteration
        self.values |= metric.values
        if "throughput/step_seconds" in metric.values:
            self.step_seconds = [*self.step_seconds, metric.values["throughput/step_seconds"]][-_RATE_WINDOW:]

    @property
    def eta(self) -> float | None:
        """Seconds to the end at the recent pace; None before the first step."""
        if not self.step_seconds:
            return None
        return max(0, self.total - self.iteration) * sum(self.step_seconds) / len(self.step_seconds)

    def parts(self, *, with_validation: bool) -> list[str]:
        """What is worth showing of the last step, and of the last validation if asked for."""
        shown = [
            f"{label} {form(self.values[key])}{unit.format(processor=self.processor)}".strip()
            for key, label, form, unit in _SHOWN
            if key in self.values and (with_validation or key != "validation/loss")
        ]
        if self.skipped:
            shown.append(f"skipped {self.skipped}")
        return shown


_SHOWN: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
    ("train/loss", "loss", "{:.4f}".format, ""),
    ("validation/loss", "validation", "{:.4f}".format, ""),
    ("train/grad_norm", "grad norm", "{:.3g}".format, ""),
    ("throughput/tokens_per_second", "", partial(short_count, digits=3), " tokens/s total"),
    ("throughput/tflops_per_gpu", "", "{:.3g}".format, " TFLOP/s per {processor}"),
)


EVENTS: dict[type[Event], Severity | None] = {
    Started: None,
    Pretrained: None,
    Resumed: None,
    CheckpointSaved: None,
    CheckpointFailed: "warning",
    CheckpointSkipped: "warning",
    Exported: None,
    ExportFailed: "warning",
    StepSkipped: "warning",
    StopRequested: None,
    Hang: "error",
}
"""The events that a person sees, and which are more than news."""


def event_line(event: Event) -> str | None:
    """An event in words; None for those that a person need not see."""
    if type(event) not in EVENTS:
        return None
    severity = EVENTS[type(event)]
    return sentence_of(event) if severity is None else f"{severity}: {sentence_of(event)}"


class Follower(Watcher):
    """Keeps a snapshot up to date. Subclasses show it."""

    def __init__(self, run: RunDir, total: int) -> None:
        self.snapshot = Snapshot(total)
        self._metrics = MetricTail(run.metrics_file, size_of(run.metrics_file))
        self._events = EventTail(run.events_file)

    def poll(self) -> None:
        for event in self._events.poll():
            match event:
                case CheckpointSaved():
                    self.snapshot.saved = event.iteration
                case StepSkipped():
                    self.snapshot.skipped += 1
                case Started(iteration=int(iteration)):
                    self.snapshot.iteration = iteration
                    self.snapshot.processor = computing_unit(event.device)
                    self.start()
            line = event_line(event)
            if line is not None:
                self.say(line, EVENTS[type(event)])
        for metric in self._metrics.poll():
            self.snapshot.take(metric)
            self.show(metric)

    def start(self) -> None:
        """The training begins, at `snapshot.iteration`."""

    def show(self, metric: Metric) -> None:
        """A step was measured."""


class Lines(Follower):
    """Plain lines: one per measured step, but not more often than every few seconds. Subclasses `say` them."""

    def __init__(self, run: RunDir, total: int, seconds_between_lines: float = _SECONDS_BETWEEN_LINES) -> None:
        super().__init__(run, total)
        self._pause = seconds_between_lines
        self._last = -self._pause

    def show(self, metric: Metric) -> None:
        where = f"iteration {metric.iteration}/{self.snapshot.total}"
        if "validation/loss" in metric.values:
            said = [
                f"{name} {metric.values[key]:.{digits}f}"
                for key, name, digits in _OF_EVALUATION
                if key in metric.values
            ]
            self.say("  ".join([where, *said]))
        now = time.monotonic()
        is_last = metric.iteration >= self.snapshot.total
        if "train/loss" not in metric.values or (not is_last and now - self._last < self._pause):
            return
        self._last = now
        eta = self.snapshot.eta
        left = [f"{clock_time(eta)} left"] if eta is not None else []
        self.say("  ".join([where, *self.snapshot.parts(with_validation=False), *left]))


class LineWatcher(Lines):
    """For files and pipes."""

    def __init__(
        self, run: RunDir, total: int, out: TextIO, seconds_between_lines: float = _SECONDS_BETWEEN_LINES
    ) -> None:
        super().__init__(run, total, seconds_between_lines)
        self._out = out

    def say(self, message: str, severity: Severity | None = None) -> None:
        print(message, file=self._out, flush=True)
