"""Trainings that go no further than a step until they are asked to stop or let go, however long a test takes."""

from __future__ import annotations

from orchestrator.run_directory.rundir import RunDir
from support.faults import wait_until

HOLD = """
import os, time
import orchestrator.runtime.loop as loop
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.types import Launched
step_that_is_held = loop.train_step
def hold(session):
    run, rank, since = session.launch.run, session.processes.ranks.rank, os.environ.get("HOLD_SINCE")
    start = max(0, len(run.events().all(Launched)) - 1)
    steps = os.environ["HOLD_AT"].split()
    step = steps[min(start, len(steps) - 1)]
    if step == "never" or session.state.iteration < int(step):
        return
    if since is not None and not any(commit.iteration > int(since) for commit in committed(run)):
        # Who is held puts no checkpoint in place: the one that is being written comes first, on all ranks.
        session.checkpointer.finish()
        if not any(commit.iteration > int(since) for commit in committed(run)):
            return
    while not (session.launch.stop.is_set() or run.stop_file.exists() or (run.path / "go").exists()):
        (run.path / f"held-{start}-{rank}").touch()
        time.sleep(0.05)
def held_step(session):
    hold(session)
    return step_that_is_held(session)
if "HOLD_AT" in os.environ:
    loop.train_step = held_step
"""
"""For `inject`: ranks with the variables of `hold_at`."""

STEPS_UNTIL_A_STOP = 2
"""That ranks still train when they are asked to stop while they are held: what they say of it goes with the next step,
and all have heard it after the one that follows.
"""


def hold_at(*steps: int | None, since: int | None = None) -> dict[str, str]:
    """Variables of ranks that stay at a step until the run is asked to stop, or `let_go`: one step for each launch of
    the run, the last one for those that follow, None for a launch that is not held; `since`: not before there is
    a checkpoint of a later step than that. What is measured of the step itself is known after the next one.
    """
    words = " ".join("never" if step is None else str(step) for step in steps)
    return {"HOLD_AT": words, **({} if since is None else {"HOLD_SINCE": str(since)})}


def wait_for_hold(run: RunDir, count: int, *, launch: int = 0) -> None:
    """Wait until so many ranks of a launch are held."""
    marks = [run.path / f"held-{launch}-{rank}" for rank in range(count)]
    wait_until(lambda: all(mark.exists() for mark in marks), f"{run.path} to be held")


def let_go(run: RunDir) -> None:
    """Let ranks that are held go on, each as soon as it looks."""
    (run.path / "go").touch()
