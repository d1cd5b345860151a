"""The process that `Commands` forks from. It gets each command through the socket that is its standard input: a JSON
object, with the command's standard streams and a socket on which the command says its process id and how it ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import orchestrator.cli.main as front

_LONGEST_REQUEST = 1 << 20


def serve() -> None:
    """Fork a process for each command until nobody can ask for one."""
    for entry in front.COMMANDS:
        importlib.import_module(entry.module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, 4)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            be_command(json.loads(request), descriptors[:3], socket.socket(fileno=descriptors[3]))
        for descriptor in descriptors:
            os.close(descriptor)


def be_command(request: Mapping[str, Any], streams: Sequence[int], answer: socket.socket) -> None:
    """Run one command and say how it ended. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        answer.send(f"{os.getpid()}\n".encode())
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        # As `python -m` has it.
        sys.path[:0] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        sys.argv = ["orchestrator", *request["arguments"]]
        code = front.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        answer.send(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    serve()
