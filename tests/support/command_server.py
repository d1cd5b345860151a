"""The process that `Commands` forks from. It gets each command through the socket that is its standard input: a JSON
object, with the command's standard streams and a socket on which the command says its process id and how it ended.
`entered` is a process on another machine where the command is to run (slurm/machine.py), or None.
Its own arguments are programs that commands become: `orchestrator.dashboard` is `main` in its module `__main__`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import orchestrator.cli.main as front
from orchestrator.imports import staying

_LONGEST_REQUEST = 1 << 20
_ASKING = Path(__file__).with_name("asking.py")
_LATER = ("jinja2.sandbox", "typer.rich_utils")
"""What commands import when they come to it: scripts and refused words are some of many tests'."""


def serve() -> None:
    """Fork a process for each command until nobody can ask for one."""
    programs: dict[str, Callable[[Sequence[str]], int]] = {}
    with staying():
        for entry in front.COMMANDS:
            front.command_of(entry.name)  # imported, and its parameters known
        for name in _LATER:
            importlib.import_module(name)
        for name in sys.argv[1:]:
            programs[name] = importlib.import_module(f"{name}.__main__").main
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, 4)
        if not request:
            return
        if os.fork() == 0:
            control.close()
            answer = socket.socket(fileno=descriptors[3])
            with patch.object(os, "execv", partial(become, programs, answer, os.execv)):
                be_command(json.loads(request), descriptors[:3], answer)
        for descriptor in descriptors:
            os.close(descriptor)


def become(
    programs: Mapping[str, Callable[[Sequence[str]], int]],
    answer: socket.socket,
    execv: Callable[[str, Sequence[str]], NoReturn],
    path: str,
    arguments: Sequence[str],
) -> NoReturn:
    """What `os.execv` does, but for a program that was imported: it goes on in the command's process."""
    if list(arguments[1:3]) != ["-P", "-m"] or arguments[3] not in programs:
        execv(path, arguments)
    code = programs[arguments[3]](arguments[4:])
    sys.stdout.flush()
    sys.stderr.flush()
    answer.send(str(code).encode())
    os._exit(code)


def be_command(request: Mapping[str, Any], streams: Sequence[int], answer: socket.socket) -> None:
    """Run one command and say how it ended. Never returns."""
    code = 1
    try:
        if request["entered"] is not None:
            runpy.run_path(str(_ASKING))["enter_the_machine_of"](request["entered"])
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        answer.send(f"{os.getpid()}\n".encode())
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdout = os.fdopen(1, "w", closefd=False)  # ours may have been of another kind, which can be rewound
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
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
