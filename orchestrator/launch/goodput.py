"""How much of a run's wall time went into steps that count."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.rundir import RunDir
from orchestrator.tracking.metrics import MetricTail


@dataclass(frozen=True)
class Goodput:
    """`productive_seconds`: time of the steps whose result the run still has, each counted once. `wall_seconds`: from
    the first launch to the end, or to now while it runs, pauses included."""

    launches: int
    steps_repeated: int
    productive_seconds: float
    wall_seconds: float

    @property
    def fraction(self) -> float | None:
        """Productive part of the wall time; None before there is any."""
        return min(1.0, self.productive_seconds / self.wall_seconds) if self.wall_seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "fraction": self.fraction}


def goodput_of(run: RunDir, *, is_live: bool) -> Goodput:
    """Computed from the whole metric and event logs. Pass whether some process works on the run."""
    events = run.events()
    times = [float(event["time"]) for event in events]
    launched = [float(event["time"]) for event in events if event.get("event") == "launched"]
    kept: list[tuple[int, float]] = []  # (iteration, seconds) of the records that still count
    repeated = 0
    for metric in MetricTail(run.metrics_file).poll():
        times.append(metric.time)
        if "train/loss" not in metric.values:
            continue  # an evaluation
        previous = kept[-1][0] if kept else 0
        while kept and kept[-1][0] >= metric.iteration:
            kept.pop()
        base = kept[-1][0] if kept else 0
        if metric.iteration <= previous:
            repeated += previous - base
        # One record stands for all steps since the one before it.
        kept.append((metric.iteration, metric.values.get("throughput/step_seconds", 0.0) * (metric.iteration - base)))
    end = time.time() if is_live else max(times, default=0.0)
    return Goodput(
        launches=len(launched),
        steps_repeated=repeated,
        productive_seconds=sum(seconds for _, seconds in kept),
        wall_seconds=max(0.0, end - launched[0]) if launched else 0.0,
    )
