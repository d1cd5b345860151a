"""The workers of pytest-xdist, forked from one process that has imported the modules of all tests.

Each would import them for itself: ten seconds of the processor, and twenty where no bytecode is there yet, which all of
them would then compile and write.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SOCKET = "workers"


class ForkedWorkers:
    """The process that forks, until `close`."""

    def __init__(self, arguments: Sequence[str], home: Path) -> None:
        """`arguments`: those of pytest. `home`: what modules take for the home when they are imported."""
        with socket.socket(socket.AF_UNIX) as listening:
            folder = os.open(home, os.O_PATH)
            listening.bind(f"/proc/self/fd/{folder}/{_SOCKET}")  # its whole name may be longer than a socket's can be
            os.close(folder)
            listening.listen()
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", __file__, str(listening.fileno()), json.dumps(sys.path)),
                    *(*arguments, "--numprocesses=0", "--collect-only", "--capture=no", f"--home={home}"),
                ],
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
        self.python = shlex.join([sys.executable, "-I", "-S", __file__, str(home)])
        """What execnet starts instead of a Python that becomes a worker."""

    def close(self) -> None:
        """End the process; what was forked goes on."""
        with self._process:
            self._process.kill()  # to take apart what it has imported would take seconds


class _Importing:
    """A plugin: modules are imported, and no tests are made of what is in them."""

    def pytest_pycollect_makeitem(self) -> list[object]:
        return []


def serve(listening: socket.socket, arguments: Sequence[str]) -> None:
    """Import all, then fork for each who asks, until standard input ends, with pytest. A worker returns at its end."""
    import pytest

    # What goes wrong the workers say. It stays open: handlers of logs that are made meanwhile go on to write there.
    with contextlib.redirect_stderr(open(os.devnull, "w")):
        pytest.main([*arguments], plugins=[_Importing()])
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest and its workers
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        connection, _ = listening.accept()
        with connection:
            if os.fork() == 0:
                listening.close()
                # Called before what modules registered as they were imported: folders that they made then are
                # everybody's, and no worker removes them at its end.
                atexit.register(os._exit, 0)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                be_worker(connection)
                return
    os._exit(0)


def be_worker(connection: socket.socket) -> None:
    """What the Python that execnet has started would be, with its standard streams."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    connection.sendall(f"{os.getpid()}\n".encode())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    connection.close()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


def stand_for_worker(home: str) -> None:
    """Have a worker forked that gets this process's standard streams, and end when it does."""
    begun = os.getcwd()
    os.chdir(home)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_SOCKET)
            socket.send_fds(connection, [b"."], [0, 1, 2])
            with connection.makefile() as told:
                pid = int(told.readline())
    except (OSError, ValueError):  # nobody forks any more: this becomes the worker itself
        os.chdir(begun)
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker hears it as well
    for stream in (0, 1):
        os.close(stream)  # what execnet reads ends with the worker
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        sys.path[:] = json.loads(sys.argv[2])
        serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[3:])
    else:
        stand_for_worker(sys.argv[1])
