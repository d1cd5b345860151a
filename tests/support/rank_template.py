"""One process that has imported what ranks need, from which the processes that fork ranks (ranks.py) are forked: each
worker of a test run has one or more, and would import torch and megatron-core for five seconds.

`python rank_template.py FD` is that process; it imports nothing before somebody asks. `python rank_template.py SOCKET
FD MODULES` is what a `RankStarter` starts: it has its standard streams taken over, and ends with what was forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SOCKET = "ranks"
TEMPLATES: list[Path] = []
"""The sockets of those that there are for this process: the last one is asked."""
_LONGEST_REQUEST = 1 << 20


def variables_before_the_forks() -> dict[str, str]:
    """Of a process that is to fork ranks."""
    from support.ranks import ROOM

    return {
        **os.environ,
        # Whether there is a GPU is asked of the driver's management library, which leaves CUDA alone.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # Kernels are compiled in the rank itself: processes that help would cost each rank more than its few kernels.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        ROOM: "x" * 2**16,
    }


def program_that_forks() -> list[str]:
    """What becomes, or stands for, a process that forks ranks."""
    if TEMPLATES:
        return [sys.executable, "-I", "-S", __file__, str(TEMPLATES[-1])]
    # -P: what lies beside the program is not what libraries mean by a name.
    return [sys.executable, "-P", str(Path(__file__).with_name("ranks.py"))]


class RankTemplate:
    """The process, until `close`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where its socket is to be."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            place = os.open(folder, os.O_PATH)
            listening.bind(f"/proc/self/fd/{place}/{SOCKET}")  # its whole name may be longer than a socket's can be
            os.close(place)
            listening.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(listening.fileno())],
                env=variables_before_the_forks(),
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """End the process; what was forked goes on."""
        with self._process:
            self._process.kill()


def serve(listening: socket.socket) -> None:
    """Fork for each who asks, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest and its workers
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        connection, _ = listening.accept()
        sys.path.append(str(Path(__file__).parents[1]))
        from orchestrator.imports import staying
        from support import ranks

        sys.path.pop()
        with staying():
            ranks.import_all()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with connection:
            if os.fork() == 0:
                listening.close()
                request, their_socket = become(connection)
                ranks.serve(their_socket, request["modules"])
                os._exit(0)


def become(connection: socket.socket) -> tuple[dict[str, Any], socket.socket]:
    """Go on with the streams, the folder and the variables of who asks; what it asks for, and the socket it gave."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    message, (*streams, theirs), _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, 4)
    connection.sendall(str(os.getpid()).encode())
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    request = json.loads(message)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    return request, socket.socket(fileno=theirs)


def stand_for_starter(path: str, listening: int, modules: list[str]) -> None:
    """Have a process forked that gets this one's standard streams and the socket, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = {"env": dict(os.environ), "cwd": os.getcwd(), "modules": modules}
    os.chdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.path.basename(path))
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2, listening])
        pid = int(connection.recv(100))
    for number in (0, 1, listening):
        os.close(number)
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        stand_for_starter(sys.argv[1], int(sys.argv[2]), list(filter(None, sys.argv[3].split(","))))
