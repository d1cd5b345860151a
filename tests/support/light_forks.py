"""Programs of ours that import no torch, forked from one process that has imported them: launchers, and the fakes of
trainings with the quick torchrun that starts them.

Each takes half a second, most of it for imports. `python light_forks.py FD MODULES...` is that process; what stands in
for programs that others start (forked/) asks it as it does the one of ranks.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

TESTS = Path(__file__).parents[1]
FORKED = Path(__file__).parent / "forked"
_ROOM = "ROOM_FOR_VARIABLES"


class ForkedProgram:
    """A program that runs, with what is needed of a `Popen`."""

    def __init__(
        self, server: Path, command: Sequence[str], env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
    ) -> None:
        """`server`: the socket of the process that forks. `command`: a module and its arguments."""
        self._answer = socket.socket(socket.AF_UNIX)
        folder = os.open(server.parent, os.O_PATH)
        self._answer.connect(f"/proc/self/fd/{folder}/{server.name}")
        os.close(folder)
        request = {"module": command[0], "arguments": [*command[1:]], "env": dict(env), "cwd": os.getcwd()}
        request["is_safe"] = False
        message = marshal.dumps(request)
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), output.fileno(), errors.fileno()]
            socket.send_fds(self._answer, [len(message).to_bytes(4, "big")], streams)
        self._answer.sendall(message)
        self._told = self._answer.makefile("r")
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None; of one that was killed, -SIGKILL."""
        if self.returncode is None and select.select([self._answer], [], [], 0)[0]:
            self.returncode = int(self._told.readline() or -signal.SIGKILL)
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        """The exit code."""
        if self.returncode is None and not select.select([self._answer], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.kill()
        self.wait(30)
        self._told.close()
        self._answer.close()


class LightForks:
    """The process that forks, until `close`."""

    def __init__(self, scratch: Path, *modules: str) -> None:
        """`modules`: programs that are forked besides torchrun with its ranks, and imported before that."""
        self._modules = modules
        self._socket = scratch / "socket"
        with open(scratch / "log", "wb") as log, socket.socket(socket.AF_UNIX) as listening:
            folder = os.open(scratch, os.O_PATH)
            listening.bind(f"/proc/self/fd/{folder}/socket")  # its whole name may be longer than a socket's can be
            os.close(folder)
            listening.listen()
            self._process = subprocess.Popen(
                # -P: what lies beside this file is not what libraries mean by a name.
                [sys.executable, "-P", __file__, str(listening.fileno()), *modules],
                env={**os.environ, _ROOM: "x" * 2**16},
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def variables(self, *folders: Path) -> dict[str, str]:
        """Of programs that start others which are to be forked here. `folders`: more of PYTHONPATH."""
        path = ":".join(map(str, (FORKED, *folders)))
        return {"PYTHONPATH": path, "RANKS_FROM": str(self._socket), "FORKED_TOO": " ".join(self._modules)}

    def start(
        self, *command: str | Path, env: Mapping[str, str], output: IO[bytes], errors: IO[bytes] | None = None
    ) -> ForkedProgram:
        """A module with its arguments. It has no input; `errors`: where these go apart from what else it says."""
        return ForkedProgram(self._socket, [*map(str, command)], env, output, errors or output)

    def close(self) -> None:
        """End the process; what was forked goes on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def serve(listening: socket.socket, modules: Sequence[str]) -> None:
    """Fork for each who asks, until standard input ends."""
    sys.path.append(str(TESTS))
    from orchestrator.imports import staying
    from support.ranks import stand_for

    with staying():
        for name in modules:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            program = name if spec.submodule_search_locations is None else f"{name}.__main__"
            importlib.import_module(program)
            # Its own code is executed anew, as `-m` does; what it imports is there.
            del sys.modules[program]
            package, _, own = program.rpartition(".")
            del vars(sys.modules[package])[own]
    del os.environ[_ROOM]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            stand_for(connection)
        connection.close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
