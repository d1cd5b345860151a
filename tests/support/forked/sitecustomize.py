"""First on PYTHONPATH: programs that begin with two seconds of importing torch are forked instead from a process that
has imported it, where RANKS_FROM names that one's socket (ranks.py). The process that was started stays, passes signals
on, and ends as the other does.

`-m torch.distributed.run` becomes what quick_torchrun has in its place, but where REAL_TORCHRUN is set
(torchrun_with_forks.py), and its ranks are forked as well. So are the tests' own programs, `-m …_program`, and those
that FORKED_TOO names.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

PROGRAMS = (
    "orchestrator.evaluation",
    "orchestrator.conversion",
    "orchestrator.inference",
    "orchestrator.inference.serving",
    "torch.distributed.run",
)
NODE = "orchestrator.batch.node"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def stand_for(name: str, module: str, arguments: list[str]) -> int:
    """Have a program run in a process of its own; its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        folder = os.open(os.path.dirname(name), os.O_PATH)
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(name)}")
        os.close(folder)
        request = {"module": module, "arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
        request["is_safe"] = bool(sys.flags.safe_path)
        message = json.dumps(request).encode()
        socket.send_fds(connection, [len(message).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(message)
        answers = connection.makefile("r")
        if not (first := answers.readline()):
            raise ConnectionResetError("nobody forks there")
        there = int(first)
        send = os.killpg if module == NODE else os.kill  # SLURM's go to a whole step
        for number in PASSED_ON:
            signal.signal(number, lambda number, frame: send(there, number))
        return int(answers.readline() or 1)


def is_forked(module: str) -> bool:
    if module == NODE and os.environ["SLURM_NODEID"] != "0":  # it becomes another program, with this process's number
        return False
    return module in PROGRAMS or module.endswith("_program") or module in os.environ.get("FORKED_TOO", "").split()


def begin() -> None:
    words = iter(sys.orig_argv[1:])
    option, module = next((word for word in words if word not in ("-u", "-P")), ""), next(words, "")
    if "RANKS_FROM" in os.environ and option == "-m" and is_forked(module):
        with contextlib.suppress(ConnectionError, FileNotFoundError):  # where nobody can fork, it starts as ever
            os._exit(stand_for(os.environ["RANKS_FROM"], module, list(words)))


begin()
