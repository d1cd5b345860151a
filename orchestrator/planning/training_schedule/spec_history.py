"""Which spec a run followed from which step on: a resume can change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.planning.training_schedule.batch import BatchSchedule, Progress
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved


@dataclass(frozen=True)
class Period:
    """Steps after `iteration`, before which `samples` and `tokens` were consumed, up to where the next one begins."""

    job: JobSpec
    iteration: int
    samples: int
    tokens: int
    blend_since: int = 0
    """Samples that the run had consumed when the blend that it draws from came into force."""

    def progress_at(self, iteration: int) -> Progress:
        """How far the run is after a step of this period."""
        consumed = BatchSchedule.of(self.job).samples_after(self.samples, iteration - self.iteration)
        return Progress(iteration, consumed, self.tokens_at(consumed))

    def tokens_at(self, samples: int) -> int:
        """Tokens consumed with the first `samples` samples, the last of them in this period."""
        return self.tokens + max(0, samples - self.samples) * self.job.tokens_per_sample


class Start(NamedTuple):
    """A start of a run: when, after which step, and what its event says of the data; earlier versions said nothing."""

    time: float
    iteration: int
    samples: int | None = None
    tokens: int | None = None
    blend_since: int | None = None


def periods_of(run: RunDir, events: EventLog) -> list[Period]:
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


def starts_of(events: EventLog) -> list[Start]:
    """The starts of a run, in their order."""
    return [
        Start(each.time, each.iteration, each.samples, each.tokens, each.blend_since)
        for each in events.all(Started)
        if each.time is not None and each.iteration is not None
    ]


def arranged(generations: Sequence[tuple[float, JobSpec]], starts: Sequence[Start]) -> list[Period]:
    """The periods of specs (each with the time from which it was there, at least one) and starts, in their order."""
    found: list[Period] = []
    for start in starts or [Start(0.0, 0)]:
        job = next((job for since, job in reversed(generations) if since <= start.time), generations[0][1])
        while found and found[-1].iteration >= start.iteration:
            found.pop()
        if not found:
            found.append(Period(job, 0, 0, 0))
        elif found[-1].job != job:
            reached = found[-1].progress_at(start.iteration)
            samples = reached.samples if start.samples is None else start.samples
            tokens = reached.tokens if start.tokens is None else start.tokens
            found.append(Period(job, start.iteration, samples, tokens, start.blend_since or 0))
    if len(starts) == 0:
        return [Period(generations[-1][1], 0, 0, 0)]
    return found
