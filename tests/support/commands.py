"""The command line without its start: each command is a process of its own, forked from one that has imported them all.

That takes a tenth of the CPU time of `python -m orchestrator`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("command_server.py")


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Going:
    """A command that was started. `answer` ends when it does."""

    pid: int
    answer: socket.socket

    def end(self, timeout: float) -> None:
        """Ask it to end, and wait for that: TimeoutError."""
        os.kill(self.pid, signal.SIGTERM)
        self.answer.settimeout(timeout)
        with self.answer:
            while self.answer.recv(1 << 10):
                pass


class Commands:
    """The process that forks, until `close`. Commands may run side by side."""

    def __init__(self, *programs: str, entered: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        """`programs`: those of ours that commands become, like `orchestrator.dashboard`; they are imported, too.
        `entered`: what goes before a command line that is to run on another machine (slurm/machine.py).
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: what lies beside the program is not what libraries mean by a name.
            command = [*entered, sys.executable, "-P", str(_PROGRAM), *programs]
            self._process = subprocess.Popen(command, stdin=theirs, env=env)
        self._is_elsewhere = bool(entered)

    def __call__(
        self, *arguments: str | Path, cwd: Path, env: Mapping[str, str], typed: str = "", timeout: float = 200
    ) -> Said:
        """Run a command to its end; `typed` is its standard input. One that takes too long is killed: TimeoutError."""
        request = {"arguments": [str(argument) for argument in arguments], "cwd": str(cwd), "env": dict(env)}
        with tempfile.TemporaryFile() as typing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            typing.write(typed.encode())
            typing.seek(0)
            code = self._run(request, [typing.fileno(), out.fileno(), err.fileno()], timeout)
            said = []
            for stream in (out, err):
                stream.seek(0)
                said.append(stream.read().decode())
        return Said(code, *said)

    def start(self, *arguments: str | Path, cwd: Path, env: Mapping[str, str], out: int) -> Going:
        """Start a command that writes its standard output to the descriptor `out`, and has no input."""
        request = {"arguments": [str(argument) for argument in arguments], "cwd": str(cwd), "env": dict(env)}
        with open(os.devnull) as nothing:
            ours = self._send(request, [nothing.fileno(), out, 2])
        with ours.makefile("rb", buffering=0) as told:
            return Going(int(told.readline()), ours)

    def _send(self, request: Mapping[str, Any], streams: Sequence[int]) -> socket.socket:
        """Have a command started; where it answers."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        return ours

    def _run(self, request: Mapping[str, Any], streams: Sequence[int], timeout: float) -> int:
        ours = self._send(request, streams)
        with ours, ours.makefile("rb") as told:
            ours.settimeout(timeout)
            pid = int(told.readline())
            try:
                code = told.read()  # until the command has ended
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    if not self._is_elsewhere:  # where the number is another process's; that machine ends it
                        os.killpg(pid, signal.SIGKILL)
                raise
        assert code, f"{request['arguments']} was killed"
        return int(code)

    def close(self) -> None:
        """End the process."""
        self._control.close()
        self._process.wait(30)
