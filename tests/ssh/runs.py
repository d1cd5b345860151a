"""Runs over `ssh` that a test does something to, and how their launches ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.faults import CommandLine
from support.training import events

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

STEPS = 12


@contextmanager
def started(command: CommandLine, job: JobSpec) -> Iterator[Callable[[], str]]:
    """A run in the foreground; yields what waits for its end and returns what was printed."""
    with command.started("run", command.write(job)) as process:

        def end() -> str:
            out, err = process.communicate(timeout=600)
            return f"{process.returncode}\n{out}{err}"

        yield end


def causes(run: RunDir) -> list[tuple[str, str | None]]:
    return [(event["cause"], event.get("node")) for event in events(run, "exited")]
