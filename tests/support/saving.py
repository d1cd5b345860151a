"""What saves cost a training, and how long a new process takes to go on from one: measured on real trainings."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from support.faults import Ranks, wait_until
from support.training import events, kill_session, logs, start

_PROGRAM = Path(__file__).with_name("saving_rank.py")
SECONDS = 300.0
"""A hundred gigabytes are written twice in them."""


@dataclass(frozen=True)
class Save:
    """One save, of the rank that it cost the most."""

    standing_still: float
    """Seconds that the steps in which it was begun and committed took longer than a quiet one."""
    slowed_down: float
    """Seconds that all steps between them took longer."""
    steps: int
    """How many steps were done until it was committed."""
    seconds: float
    """From its beginning until it was committed."""
    bytes: int


@dataclass(frozen=True)
class Quiet:
    """Of the training beside its saves."""

    step: float
    """Seconds of a step in which nothing else was done, the median."""
    taking: float
    """Seconds in which the memory for saves was taken."""
    taking_step: float
    """The median step of that time."""


def measure_saves(ranks: Ranks, run: RunDir, job: JobSpec, env: Mapping[str, str]) -> tuple[Quiet, list[Save]]:
    """Train and save, as the slowest rank did."""
    started = ranks.start(run, job, program=_PROGRAM, env=env)
    assert started.wait(SECONDS) == 0, logs(run)
    found = [json.loads((run.path / f"saves-{rank}.json").read_text()) for rank in range(job.world_size)]
    each = [_saves(one, events(run, "checkpoint_saved")) for one in found]
    quiet = max((quiet for quiet, _ in each), key=lambda quiet: quiet.taking)
    by_save = zip(*(saves for _, saves in each), strict=True)
    worst = [max(saves, key=lambda save: save.standing_still) for saves in by_save]
    return quiet, worst


def _saves(found: Mapping[str, Any], saved: list[dict[str, Any]]) -> tuple[Quiet, list[Save]]:
    ended, begun, committed = found["ended"], found["begun"], found["committed"]
    seconds = [0.0, *(after - before for before, after in itertools.pairwise(ended))]  # of step i + 1
    busy = {step for first, last in zip(begun, committed, strict=True) for step in range(first, last + 1)}
    ready = found["ready"]
    quiet = statistics.median(seconds[step] for step in range(ready + 1, len(ended)) if step not in busy)
    saves = []
    for first, last, event in zip(begun, committed, saved, strict=True):
        # The step `last` noticed that the save had been committed at the end of the step before.
        still = {first, last - 1}
        over = {step: seconds[step] - quiet for step in range(first, last)}
        saves.append(
            Save(
                standing_still=sum(over[step] for step in still),
                slowed_down=sum(over[step] for step in over if step not in still),
                steps=last - first,
                seconds=event["seconds"],
                bytes=event["bytes"],
            )
        )
    taking = Quiet(quiet, ended[ready - 1] - ended[0], statistics.median(seconds[1:ready] or [0.0]))
    return taking, saves


@contextmanager
def resumed(run: RunDir, job: JobSpec, env: Mapping[str, str]) -> Iterator[tuple[float, dict[str, float]]]:
    """Go on in new processes, which are ended with the block. Gives the seconds from their start to the end of their
    first step, and the parts of it that rank 0 told of.
    """
    began, before = time.time(), len(events(run, "first_step"))
    process = start(run, job, env=env)
    try:
        wait_until(lambda: events(run, "first_step")[before:] or process.poll() is not None, "the first step")
        assert events(run, "first_step")[before:], logs(run)
        first = events(run, "first_step")[before]
        assert events(run, "resumed"), "it went on from the checkpoint"
        yield first["time"] - began, first["seconds"]
    finally:
        kill_session(process)
