"""`python -m orchestrator.executors.ssh RUN_DIR`: start a launch on its hosts and see it through, in place of torchrun.

Its exit code is that of the first host that fails. Which host was lost it leaves in the run directory
(run_directory/exits/host_failures.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from orchestrator.errors import OrchestratorError
from orchestrator.executors.ssh.connection import Connection
from orchestrator.executors.ssh.copies import RunCopy, code_copy
from orchestrator.executors.ssh.messages import SECONDS_BETWEEN_SIGNS
from orchestrator.fields.values import environment_references
from orchestrator.launch.executor_protocol import Place
from orchestrator.launch.hosts import hosts_of, run_on_hosts
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE
from orchestrator.launch.processes.stop_request import stop_at_once
from orchestrator.launch.requeue_policy import nodes_at_fault
from orchestrator.planning.layout.elastic import node_counts
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Launched, Requeued
from orchestrator.run_directory.exits.host_failures import HostFailure, write_host_failure
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import CODE_PATH_VARIABLE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

MOST_CONNECTING = 8
"""Hosts that are connected at once: an `sshd`, or that of a jump host, begins to drop connections at ten by default."""
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

    def fail(self, hosts: Sequence[str], why: str, *, was_cancelled: bool = False) -> None:
        """Leave word of hosts that were lost; of none, that it could not begin, or was not to."""
        what = f"lost {', '.join(hosts)}" if hosts else "cancelled" if was_cancelled else "refused"
        print(f"=== {what}: {why}", flush=True)
        write_host_failure(self.run, HostFailure(self.id, tuple(hosts), why, was_cancelled))


def main() -> int:
    """Run one launch; returns its exit code."""
    run = RunDir(Path(sys.argv[1]))
    launch = Launch(run, os.environ[LAUNCH_VARIABLE], load_resolved(run.resolved()))

    def note(number: int, frame: FrameType | None) -> None:
        launch.asked.append(number)

    signal.signal(signal.SIGTERM, note)  # of the kernel, when the launcher was killed
    connections: list[Connection] = []
    python = launch.job.launch.python or sys.executable
    try:
        if launch.job.launch.copy_to is None:
            place = Place(run, Path.cwd(), python, os.environ.get("PYTHONPATH", ""))
            for host in hosts_of(launch.job.launch):
                connections.append(Connection(host, place, {"id": launch.id}))
            chosen = _choose(launch, connections)
        else:
            earlier = [event.launch_id for event in run.events().all(Launched) if event.launch_id != launch.id]
            with code_copy(run, launch.job, python) as code:
                for host in hosts_of(launch.job.launch):
                    said = {"id": launch.id, "earlier": earlier}
                    connections.append(Connection(host, code.place, said, code.command(host)))
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
    go. Fewer than `launch.nodes` once the rest is known not to start, if the job allows that; empty where too few can
    be had, after that was said.
    """
    wanted, counts = launch.job.launch.nodes, node_counts(launch.job)
    events = _since_a_person_started(launch.run.events())
    blamed = set(nodes_at_fault(events))
    enough_since: float | None = None
    next_sign = 0.0
    while True:
        _connect(connections)
        in_order = sorted(connections, key=lambda each: not blamed.isdisjoint(each.names))
        ready = [each for each in in_order if each.can_start]
        is_best = ready[:wanted] == in_order[:wanted] or all(each.is_settled for each in connections)
        is_stopped = launch.asked or launch.run.stop_file.exists()
        if is_stopped or is_best:
            break
        now = time.monotonic()
        if enough_since is None and len(ready) >= wanted:
            enough_since = now
        if enough_since is not None and now - enough_since > SECONDS_TO_PREFER:
            break
        if now > next_sign:
            next_sign = now + SECONDS_BETWEEN_SIGNS
            for each in connections:
                each.show_a_sign()
        time.sleep(_POLL_SECONDS)
    number = 0 if is_stopped else next((count for count in counts if count <= len(ready)), 0)
    absent = [each for each in connections if not each.can_start]
    why = "; ".join(f"{each.host}: {each.words}" for each in absent)
    for each in connections:
        if each not in ready[:number]:
            each.let_go()
    if is_stopped:
        launch.fail((), "stopped before it started", was_cancelled=True)
        return []
    if number:
        if number < wanted:
            print(f"=== {number} of {wanted} nodes (launch.min_nodes): {why}", flush=True)
        return ready[:number]
    if events.last(Requeued) is None:
        way_out = "repair these, or name other hosts in launch.hosts"
        needed = f"{counts[-1]} to {wanted}" if len(counts) > 1 else str(wanted)
        launch.fail((), f"{len(ready)} of {needed} hosts can start this job ({why}): {way_out}")
    else:
        launch.fail([each.host for each in absent], why)
    return []


def _connect(connections: Sequence[Connection]) -> None:
    """Begin to connect those hosts that are next, and again those that were dropped, a few at a time."""
    for each in connections:
        each.poll()
    room = MOST_CONNECTING - sum(each.is_connecting for each in connections)
    for each in [each for each in connections if each.is_due][: max(room, 0)]:
        each.connect()


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
    meeting = {"MASTER_ADDR": first.address, "MASTER_PORT": str(first.port), "NNODES": str(len(chosen))}
    print(f"=== hosts {', '.join(each.host for each in chosen)}, which meet at {first.address}", flush=True)
    copy: RunCopy | None = None
    if launch.job.launch.copy_to is not None:
        [only] = chosen
        copy = RunCopy(launch.run, run_on_hosts(launch.run, launch.job.launch), only.host)
        if (why := copy.send(partial(_wait, chosen))) is not None:
            launch.fail([only.host], f"the run directory could not be copied: {why}")
            return 1
    for number, each in enumerate(chosen):
        each.start({**given, **meeting, "NODE_RANK": str(number)})
    failed: Connection | None = None
    deadline: float | None = None
    next_sign, has_stop_file = 0.0, False
    while any(each.code is None for each in chosen):
        now = time.monotonic()
        failed = failed or next((each for each in chosen if each.code not in (None, 0)), None)
        at_once = copy is not None and stop_at_once(launch.run) is not None  # the copy does not say so in time
        if deadline is None and (failed is not None or launch.asked or at_once):
            patience = 0.0 if at_once else SECONDS_TO_SAVE if failed is None else SECONDS_TO_LEAVE
            deadline = now + patience + SECONDS_TO_END
            for each in chosen:
                each.stop(patience)
        if deadline is not None and now > deadline:
            break  # a host that does not even answer this ends its processes when it hears nothing more
        if now > next_sign:
            next_sign = now + SECONDS_BETWEEN_SIGNS
            for each in chosen:
                each.show_a_sign()
        if copy is not None:
            copy.poll()
            if not has_stop_file and launch.run.stop_file.exists():
                has_stop_file = True
                chosen[0].say("stop_file", json.dumps(launch.run.stop_request()))
        time.sleep(_POLL_SECONDS)
    is_there = all(each.code is not None and not each.is_lost for each in chosen)
    if copy is not None and (why := copy.end(partial(_wait, ()) if is_there else None)) is not None:
        launch.fail([chosen[0].host], f"what it has written could not be copied back: {why}")
        return chosen[0].code or 1
    # A host that was lost explains why the ranks of others failed, although these may be heard of first.
    lost = [each for each in chosen if each.is_lost or each.code is None]
    if lost and not launch.asked:
        launch.fail([each.host for each in lost], lost[0].words)
    failed = failed or next((each for each in chosen if each.code != 0), None)
    if failed is None:
        return 1 if launch.asked else 0
    return failed.code or 1


def _wait(connections: Sequence[Connection], seconds: float) -> None:
    for each in connections:
        each.show_a_sign()
    time.sleep(seconds)


if __name__ == "__main__":
    sys.exit(main())
