"""`python -m orchestrator.executors.ssh RUN_DIR`: start a launch on its hosts and see it through, in place of torchrun.

Its exit code is that of the first host that fails. What it says itself begins with `===`; run_directory/exits reads
there which host was lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from orchestrator.errors import OrchestratorError, UserError
from orchestrator.executors.ssh.connection import Connection
from orchestrator.executors.ssh.hosts import hosts_of
from orchestrator.executors.ssh.messages import SECONDS_BETWEEN_SIGNS
from orchestrator.fields.values import environment_references
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE
from orchestrator.run_directory.events.types import Requeued
from orchestrator.run_directory.exits.classification import lost_host_line, refused_hosts_line
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

SECONDS_TO_CONNECT = 60.0
SECONDS_TO_PREFER = 10.0
"""How long hosts are waited for that come first, once others are ready."""
SECONDS_TO_SAVE = 30.0
"""How long ranks may take to save that are asked to stop."""
SECONDS_TO_END = 15.0
"""How long hosts may take to end their processes after that."""
_POLL_SECONDS = 0.1


def main() -> int:
    """Run one launch; returns its exit code."""
    run, launch_id = RunDir(Path(sys.argv[1])), os.environ[LAUNCH_VARIABLE]
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, note)  # of the kernel, when the launcher was killed
    connections: list[Connection] = []
    try:
        job = load_resolved(run.resolved())
        python = job.launch.python or sys.executable
        connections += [Connection(host, run, launch_id, python) for host in hosts_of(job.launch)]
        chosen = _choose(run, job, connections, asked)
        if not chosen:
            return 1
        return _see_through(chosen, job, asked)
    except OrchestratorError as error:
        say(refused_hosts_line(str(error)))
        return error.exit_code
    finally:
        for connection in connections:
            connection.close()


def _choose(run: RunDir, job: JobSpec, connections: Sequence[Connection], asked: Sequence[int]) -> list[Connection]:
    """The hosts of this launch, once so many are ready: first those that no failure was blamed on. The others are let
    go. Empty where too few can be had, after that was said.
    """
    wanted = job.launch.nodes
    before = run.events().since_submission().last(Requeued)
    blamed = before.exclude or () if before is not None else ()
    in_order = sorted(connections, key=lambda each: each.host in blamed)
    begun = time.monotonic()
    enough_since: float | None = None
    while not asked:
        ready = [each for each in in_order if each.ready is not None]
        if ready[:wanted] == in_order[:wanted] or all(each.is_settled for each in connections):
            break
        now = time.monotonic()
        if enough_since is None and len(ready) >= wanted:
            enough_since = now
        if now - begun > SECONDS_TO_CONNECT or (enough_since is not None and now - enough_since > SECONDS_TO_PREFER):
            break
        for each in connections:
            each.show_a_sign()
        time.sleep(_POLL_SECONDS)
    ready = [each for each in in_order if each.ready is not None]
    for each in connections:
        if each not in ready[:wanted]:
            each.close()
    if asked:
        return []
    if len(ready) >= wanted:
        return ready[:wanted]
    absent = [each for each in connections if each.ready is None]
    why = "; ".join(f"{each.host}: {each.words}" for each in absent)
    if before is None:
        say(refused_hosts_line(f"{len(ready)} of {wanted} hosts can start this job ({why})"))
    else:
        say(lost_host_line(",".join(each.host for each in absent), why))
    return []


def _see_through(chosen: Sequence[Connection], job: JobSpec, asked: Sequence[int]) -> int:
    """Start the processes of all hosts and wait until they have ended; the first host that fails ends the others."""
    first = chosen[0].ready
    assert first is not None
    given = {name: os.environ[name] for value in job.launch.env.values() for name in environment_references(value)}
    meeting = {"MASTER_ADDR": first.address, "MASTER_PORT": str(first.port)}
    say(f"=== hosts {', '.join(each.host for each in chosen)}, which meet at {first.address}")
    for number, each in enumerate(chosen):
        each.start({**given, **meeting, "NODE_RANK": str(number)})
    failed: Connection | None = None
    deadline: float | None = None
    next_sign = 0.0
    while any(each.code is None for each in chosen):
        now = time.monotonic()
        if failed is None:
            failed = next((each for each in chosen if each.code not in (None, 0)), None)
        if deadline is None and (failed is not None or asked):
            # Ranks that have lost others cannot save.
            patience = SECONDS_TO_SAVE if failed is None else 0.0
            deadline = now + patience + SECONDS_TO_END
            if failed is not None and failed.is_lost:
                say(lost_host_line(failed.host, failed.words))
            for each in chosen:
                each.stop(patience)
        if deadline is not None and now > deadline:
            break  # a host that does not even answer this ends its processes when it hears nothing more
        if now > next_sign:
            next_sign = now + SECONDS_BETWEEN_SIGNS
            for each in chosen:
                each.show_a_sign()
        time.sleep(_POLL_SECONDS)
    failed = failed or next((each for each in chosen if each.code not in (None, 0)), None)
    if failed is None:
        return 0 if not asked else 1
    if failed.is_lost and deadline is None:
        say(lost_host_line(failed.host, failed.words))
    return failed.code or 1


def say(line: str) -> None:
    """A line in the launcher's log."""
    print(line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise UserError("usage: python -m orchestrator.executors.ssh RUN_DIR")
    sys.exit(main())
