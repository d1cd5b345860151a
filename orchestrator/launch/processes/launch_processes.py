"""The processes of a launch on this machine, found by the launch id in their environment.

Ranks live in sessions of their own, so a process group does not reach them, and a killed torchrun leaves them behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

LAUNCH_VARIABLE = "ORCHESTRATOR_LAUNCH_ID"
REQUEUE_CODE_VARIABLE = "ORCHESTRATOR_REQUEUE_EXIT_CODE"
"""Set by a program that starts a supervisor and puts the job back into the queue itself, when the supervisor ends with
this exit code."""
_SECONDS_TO_DIE = 30.0


def processes_of(launch_id: str, variable: str = LAUNCH_VARIABLE) -> dict[int, dict[str, str]]:
    """pid → environment of every live process of a launch that we may see, the caller left out. `variable`: which one
    of their environment has the id.
    """
    wanted = f"{variable}={launch_id}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")  # empty for a zombie
        except OSError:
            continue
        if wanted in variables and int(folder.name) != os.getpid():
            pairs = (variable.decode(errors="replace").partition("=") for variable in variables if variable)
            found[int(folder.name)] = {name: value for name, _, value in pairs}
    return found


def ranks_of(launch_id: str) -> dict[int, int]:
    """rank → pid of the training processes of a launch. Their helpers (loader workers) are not listed."""
    environments = processes_of(launch_id)
    ranks: dict[int, int] = {}
    for pid, environment in sorted(environments.items()):
        if environment.get("RANK", "").isdigit() and _parent(pid) not in _of_rank(environments, environment["RANK"]):
            ranks[int(environment["RANK"])] = pid
    return ranks


def end_processes(launch_id: str, grace: float = 0.0, variable: str = LAUNCH_VARIABLE) -> list[int]:
    """End every process of a launch: SIGTERM, and SIGKILL for what is left after `grace` seconds. Returns the pids."""
    pids = list(processes_of(launch_id, variable))
    if grace > 0:
        _signal(pids, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while processes_of(launch_id, variable) and time.monotonic() < deadline:
            time.sleep(0.1)
    # A process in an uninterruptible call (a hung GPU or disk) stays whatever is done: it is not waited for.
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while (left := list(processes_of(launch_id, variable))) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return pids


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _of_rank(environments: dict[int, dict[str, str]], rank: str) -> set[int]:
    return {pid for pid, environment in environments.items() if environment.get("RANK") == rank}


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
