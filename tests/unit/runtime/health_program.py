"""Nodes for the tests of the health check: each line on standard input asks for some, which are forks of this process.
Those of several lines run side by side; what came of a line's is in the file that it names, once they have ended.

A node's variable FAULT makes it misbehave: `gpus=3` (it sees so many), `clock=12.3` (seconds ahead), `stall` (its
all-reduces never go on), `freeze` (it stops altogether in its first all-reduce), `absent`, `hang` (its disk check).
"""

from __future__ import annotations

import orchestrator.runtime.health.warning_filters  # noqa: F401 (as in the program: before torch is imported)

# isort: split
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.runtime.health import node_check, rendezvous
from orchestrator.runtime.health.__main__ import main


def misbehave(fault: str) -> None:
    kind, _, number = fault.partition("=")
    match kind:
        case "gpus":
            node_check.gpu_memory = lambda: [node_check.GpuMemory(80 << 30, 80 << 30)] * int(number)
        case "full":
            node_check.gpu_memory = lambda: [
                node_check.GpuMemory(80 << 30, 80 << 30),
                node_check.GpuMemory(8 << 30, 80 << 30),
            ]
        case "clock":
            right = time.time
            time.time = lambda: right() + float(number)
        case "stall":
            rendezvous.exchange = lambda *arguments: time.sleep(600)
        case "freeze":
            rendezvous.exchange = lambda *arguments: (os.kill(os.getppid(), signal.SIGSTOP), time.sleep(600))
        case "hang":
            node_check.folder_faults = lambda *arguments: time.sleep(600)
        case "absent":
            os._exit(0)


def be_node(environment: dict[str, str], arguments: list[str], out: Path) -> None:
    """Never returns."""
    os.environ.update(environment)
    file = os.open(out, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    misbehave(environment.get("FAULT", ""))
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_nodes(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Exit code (None: it had to be killed), output and seconds of each node."""
    started = time.monotonic()
    pids = {}
    for rank, each in enumerate(request["nodes"]):
        pid = os.fork()
        if pid == 0:
            be_node(each["environment"], each["arguments"], Path(request["out"], f"{rank}.txt"))
        pids[pid] = rank
    ended: dict[int, dict[str, Any]] = {}
    while len(ended) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            code = os.waitstatus_to_exitcode(status)
            ended[pids[pid]] = {"code": code, "seconds": time.monotonic() - started}
        elif time.monotonic() > started + request["patience"]:
            for late in [pid for pid, rank in pids.items() if rank not in ended]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(late, signal.SIGKILL)
        else:
            time.sleep(0.05)
    return [{**ended[rank], "output": Path(request["out"], f"{rank}.txt").read_text()} for rank in range(len(pids))]


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            request = json.loads(line)
            draft = Path(request["answer"] + ".draft")
            draft.write_text(json.dumps(run_nodes(request)))
            draft.rename(request["answer"])
            os._exit(0)
