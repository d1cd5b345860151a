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

    def __init__(self, *programs: str) -> None:
        """`programs`: those of ours that commands become, like `orchestrator.dashboard`; they are imported, too."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -P: what lies beside the program is not what libraries mean by a name.
            self._process = subprocess.Popen([sys.executable, "-P", str(_PROGRAM), *programs], stdin=theirs)

    def __call__(
        self,
        *arguments: str | Path,
        cwd: Path,
        env: Mapping[str, str],
        typed: str = "",
        timeout: float = 200,
        entered: int | None = None,
    ) -> Said:
        """Run a command to its end; `typed` is its standard input. One that takes too long is killed: TimeoutError.
        `entered`: a process on another machine where it is to run (slurm/machine.py), which ends it.
        """
        with tempfile.TemporaryFile() as typing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            typing.write(typed.encode())
            typing.seek(0)
            ours = self._send(arguments, cwd, env, [typing.fileno(), out.fileno(), err.fileno()], entered)
            code = self._end_of(ours, timeout, is_here=entered is None)
            assert code, f"{arguments} was killed"
            said = []
            for stream in (out, err):
                stream.seek(0)
                said.append(stream.read().decode())
        return Said(int(code), *said)

    def start(self, *arguments: str | Path, cwd: Path, env: Mapping[str, str], out: int) -> Going:
        """Start a command that writes its standard output to the descriptor `out`, and has no input."""
        with open(os.devnull) as nothing:
            ours = self._send(arguments, cwd, env, [nothing.fileno(), out, 2])
        with ours.makefile("rb", buffering=0) as told:
            return Going(int(told.readline()), ours)

    def _send(
        self,
        arguments: Sequence[str | Path],
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[int],
        entered: int | None = None,
    ) -> socket.socket:
        """Have a command started; where it answers."""
        request = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "env": dict(env), "entered": entered}
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        return ours

    def _end_of(self, ours: socket.socket, timeout: float, *, is_here: bool) -> bytes:
        """The exit code that a command says; nothing of one that is killed."""
        with ours, ours.makefile("rb") as told:
            ours.settimeout(timeout)
            pid = int(told.readline())
            try:
                return told.read()  # until the command has ended
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    if is_here:  # elsewhere the number is another process's
                        os.killpg(pid, signal.SIGKILL)
                raise

    def close(self) -> None:
        """End the process."""
        self._control.close()
        self._process.wait(30)
