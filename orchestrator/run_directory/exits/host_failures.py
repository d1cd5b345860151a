"""What a launch on several machines says of its hosts: a file in the run directory, since the logs also hold whatever
ranks print.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from orchestrator.run_directory.rundir import RunDir, write_atomically

_FILE = "hosts.json"
_MOST_WORDS = 2000


@dataclass(frozen=True)
class HostFailure:
    """Hosts that a launch has lost; without any, that it could not begin on enough of them or was cancelled before."""

    launch_id: str
    hosts: tuple[str, ...]
    why: str
    was_cancelled: bool = False


def write_host_failure(run: RunDir, failure: HostFailure) -> None:
    """Leave it for whoever finds out why the launch ended."""
    why = " ".join(failure.why.split())[:_MOST_WORDS]
    write_atomically(run.logs / _FILE, json.dumps({**asdict(failure), "why": why}))


def read_host_failure(run: RunDir, launch_id: str) -> HostFailure | None:
    """What was written of this launch."""
    record = run.read_object(run.logs / _FILE)
    if record.get("launch_id") != launch_id:
        return None
    hosts = record.get("hosts")
    named = tuple(str(host) for host in hosts) if isinstance(hosts, list) else ()
    return HostFailure(launch_id, named, str(record.get("why", "")), record.get("was_cancelled") is True)
