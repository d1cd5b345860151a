"""Which spec a run followed from which step on: a resume can change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.planning.batch import BatchSchedule
from orchestrator.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved


@dataclass(frozen=True)
class Period:
    """Steps after `iteration`, before which `samples` were consumed, up to where the next period begins."""

    job: JobSpec
    iteration: int
    samples: int

    def samples_at(self, iteration: int) -> int:
        """Samples consumed after a step of this period."""
        batch = BatchSchedule.of(self.job)
        return batch.samples_at(batch.iteration_of(self.samples) + iteration - self.iteration)


def periods_of(run: RunDir, events: Iterable[Mapping[str, Any]]) -> list[Period]:
    """The periods of a run that it still has, the first step's first. Raises UserError where no spec can be read.

    A start follows the newest spec that was there at its time, as the files' times tell.
    """
    generations = []
    for path in run.resolved_generations():
        try:
            generations.append((path.stat().st_mtime, load_resolved(path)))
        except FileNotFoundError:
            continue
    if not generations:
        generations = [(0.0, load_resolved(run.resolved()))]
    return arranged(generations, starts_of(events))


def starts_of(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """(time, the step that was done before) of each start."""
    found = []
    for event in events:
        time, iteration = event.get("time"), event.get("iteration")
        if event.get("event") == "started" and isinstance(time, int | float) and isinstance(iteration, int):
            found.append((float(time), max(0, iteration)))
    return found


def arranged(generations: Sequence[tuple[float, JobSpec]], starts: Sequence[tuple[float, int]]) -> list[Period]:
    """The periods of specs (each with the time from which it was there, at least one) and starts, in their order."""
    found: list[Period] = []
    for time, iteration in starts or [(0.0, 0)]:
        job = next((job for since, job in reversed(generations) if since <= time), generations[0][1])
        while found and found[-1].iteration >= iteration:
            found.pop()
        if not found:
            found.append(Period(job, 0, 0))
        elif found[-1].job != job:
            found.append(Period(job, iteration, found[-1].samples_at(iteration)))
    if len(starts) == 0:
        return [Period(generations[-1][1], 0, 0)]
    return found
