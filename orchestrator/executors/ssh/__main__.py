"""`python -m orchestrator.executors.ssh RUN_DIR`: start a launch on its hosts and see it through, in place of torchrun.

Its exit code is that of the first host that fails. Which host was lost it leaves in the run directory
(run_directory/exits/host_failures.py).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from orchestrator.errors import OrchestratorError
from orchestrator.executors.ssh.connection import Connection
from orchestrator.executors.ssh.messages import SECONDS_BETWEEN_SIGNS
from orchestrator.fields.values import environment_references
from orchestrator.launch.hosts import hosts_of
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE
from orchestrator.launch.requeue_policy import nodes_at_fault
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Launched, Requeued
from orchestrator.run_directory.exits.host_failures import HostFailure, write_host_failure
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import CODE_PATH_VARIABLE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

SECONDS_TO_CONNECT = 60.0
SECONDS_TO_PREFER = 10.0
"""How long hosts are waited for that come first, once others are ready."""
SECONDS_TO_SAVE = 30.0
"""How long ranks may take to save that are asked to stop."""
SECONDS_TO_LEAVE = 5.0
"""How long ranks may take to leave a word that have lost others, and cannot save."""
SECONDS_TO_END = 25.0
"""How long hosts may take to end their processes after that; longer than `ssh` takes to give a host up."""
_POLL_SECONDS = 0.1


@dataclass
class Launch:
    """One launch: its run, and whether it was asked to end."""

    run: RunDir
    id: str
    job: JobSpec
    asked: list[int] = field(default_factory=list)

    def fail(self, hosts: Sequence[str], why: str) -> None:
        """Leave word of hosts that were lost; of none, that it could not begin."""
        what = f"lost {', '.join(hosts)}" if hosts else "refused"
        print(f"=== {what}: {why}", flush=True)
        write_host_failure(self.run, HostFailure(self.id, tuple(hosts), why))


def main() -> int:
    """Run one launch; returns its exit code."""
    run = RunDir(Path(sys.argv[1]))
    launch = Launch(run, os.environ[LAUNCH_VARIABLE], load_resolved(run.resolved()))

    def note(number: int, frame: FrameType | None) -> None:
        launch.asked.append(number)

    signal.signal(signal.SIGTERM, note)  # of the kernel, when the launcher was killed
    connections: list[Connection] = []
    try:
        python = launch.job.launch.python or sys.executable
        for host in hosts_of(launch.job.launch):
            connections.append(Connection(host, run, launch.id, python))
        chosen = _choose(launch, connections)
        return _see_through(launch, chosen) if chosen else 1
    except (OrchestratorError, OSError) as error:
        launch.fail((), str(error))
        return 2
    finally:
        for connection in connections:
            connection.close()


def _choose(launch: Launch, connections: Sequence[Connection]) -> list[Connection]:
    """The hosts of this launch, once so many are ready: first those that no failure was blamed on. The others are let
    go. Empty where too few can be had, after that was said.
    """
    wanted = launch.job.launch.nodes
    events = _since_a_person_started(launch.run.events())
    blamed = set(nodes_at_fault(events))
    begun = time.monotonic()
    enough_since: float | None = None
    while True:
        in_order = sorted(connections, key=lambda each: not blamed.isdisjoint(each.names))
        ready = [each for each in in_order if each.can_start]
        is_best = ready[:wanted] == in_order[:wanted] or all(each.is_settled for each in connections)
        if launch.asked or is_best:
            break
        now = time.monotonic()
        if enough_since is None and len(ready) >= wanted:
            enough_since = now
        if now - begun > SECONDS_TO_CONNECT or (enough_since is not None and now - enough_since > SECONDS_TO_PREFER):
            break
        for each in connections:
            each.show_a_sign()
        time.sleep(_POLL_SECONDS)
    for each in connections:
        if each not in ready[:wanted]:
            each.let_go()
    if launch.asked:
        return []
    if len(ready) >= wanted:
        return ready[:wanted]
    absent = [each for each in connections if not each.can_start]
    why = "; ".join(f"{each.host}: {each.words}" for each in absent)
    if events.last(Requeued) is None:
        way_out = "repair these, or name other hosts in launch.hosts"
        launch.fail((), f"{len(ready)} of {wanted} hosts can start this job ({why}): {way_out}")
    else:
        launch.fail([each.host for each in absent], why)
    return []


def _since_a_person_started(events: EventLog) -> EventLog:
    """The events since the newest launch that was no restart, or all of them."""
    begin, is_restart = 0, False
    for number, event in enumerate(events):
        if isinstance(event, Launched):
            begin, is_restart = (begin if is_restart else number), False
        else:
            is_restart |= isinstance(event, Requeued)
    return events.since(begin)


def _see_through(launch: Launch, chosen: Sequence[Connection]) -> int:
    """Start the processes of all hosts and wait until they have ended; the first host that fails ends the others."""
    first = chosen[0].ready
    assert first is not None
    wanted = [name for value in launch.job.launch.env.values() for name in environment_references(value)]
    given = {name: os.environ[name] for name in (*wanted, CODE_PATH_VARIABLE) if name in os.environ}
    meeting = {"MASTER_ADDR": first.address, "MASTER_PORT": str(first.port)}
    print(f"=== hosts {', '.join(each.host for each in chosen)}, which meet at {first.address}", flush=True)
    for number, each in enumerate(chosen):
        each.start({**given, **meeting, "NODE_RANK": str(number)})
    failed: Connection | None = None
    deadline: float | None = None
    next_sign = 0.0
    while any(each.code is None for each in chosen):
        now = time.monotonic()
        failed = failed or next((each for each in chosen if each.code not in (None, 0)), None)
        if deadline is None and (failed is not None or launch.asked):
            patience = SECONDS_TO_SAVE if failed is None else SECONDS_TO_LEAVE
            deadline = now + patience + SECONDS_TO_END
            for each in chosen:
                each.stop(patience)
        if deadline is not None and now > deadline:
            break  # a host that does not even answer this ends its processes when it hears nothing more
        if now > next_sign:
            next_sign = now + SECONDS_BETWEEN_SIGNS
            for each in chosen:
                each.show_a_sign()
        time.sleep(_POLL_SECONDS)
    # A host that was lost explains why the ranks of others failed, although these may be heard of first.
    lost = [each for each in chosen if each.is_lost or each.code is None]
    if lost and not launch.asked:
        launch.fail([each.host for each in lost], lost[0].words)
    failed = failed or next((each for each in chosen if each.code != 0), None)
    if failed is None:
        return 1 if launch.asked else 0
    return failed.code or 1


if __name__ == "__main__":
    sys.exit(main())
