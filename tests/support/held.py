"""Trainings that go no further than a step until they are asked to stop or let go, however long a test takes."""

from __future__ import annotations

from orchestrator.run_directory.rundir import RunDir
from support.faults import wait_until

HOLD = """
import os, time
import orchestrator.runtime.loop as loop
from orchestrator.run_directory.checkpoints.commit_markers import committed
step_that_is_held = loop.train_step
def is_held(session):
    run, since = session.launch.run, os.environ.get("HOLD_SINCE")
    if session.state.iteration < int(os.environ["HOLD_AT"]):
        return False
    if session.launch.stop.is_set() or run.stop_file.exists() or (run.path / "go").exists():
        return False
    # Who is held puts no checkpoint in place that is being written.
    return since is None or any(commit.iteration > int(since) for commit in committed(run))
def held_step(session):
    while is_held(session):
        (session.launch.run.path / f"held-{session.processes.ranks.rank}").touch()
        time.sleep(0.05)
    return step_that_is_held(session)
if "HOLD_AT" in os.environ:
    loop.train_step = held_step
"""
"""For `inject`: ranks with the variables of `hold_at`."""


def hold_at(step: int, *, since: int | None = None) -> dict[str, str]:
    """Variables of ranks that stay at a step until the run is asked to stop, or `let_go`; `since`: not before there is
    a checkpoint of a later step than that. What is measured of the step itself is known after the next one.
    """
    return {"HOLD_AT": str(step), **({} if since is None else {"HOLD_SINCE": str(since)})}


def wait_for_hold(run: RunDir, count: int) -> None:
    """Wait until so many ranks are held."""
    wait_until(lambda: all((run.path / f"held-{rank}").exists() for rank in range(count)), f"{run.path} to be held")


def let_go(run: RunDir) -> None:
    """Let ranks that are held go on, each as soon as it looks."""
    (run.path / "go").touch()
