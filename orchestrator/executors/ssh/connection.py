"""One host of a launch, from here: `ssh` as the user has it, which asks nothing."""

from __future__ import annotations

import math
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from orchestrator.executors.ssh.copies import shell_line
from orchestrator.executors.ssh.messages import CONNECTION_LOST, Ready, line_of, read_message, read_ready
from orchestrator.executors.ssh.options import SSH
from orchestrator.launch.executor_protocol import Place
from orchestrator.safe_path import module_command

HOST_MODULE = "orchestrator.executors.ssh.host"
SECONDS_TO_CONNECT = 60.0
MOST_ATTEMPTS = 5
SECONDS_BEFORE_AGAIN = 1.0
"""After the first attempt; twice as long after each further one."""
_MOST_WORDS = 300
_MOST_AT_ONCE = 64 << 10
"""Bytes of a line: a progress bar may never end it."""
_OF_SSH = (b"ssh: ", b"client_loop: ", b"Timeout, server ", b"Connection ", b"packet_write_", b"Read from remote host ")
"""How lines begin that `ssh` itself writes, among those of the training."""


_DROPPED = re.compile(r"Connection (closed|reset) by|_exchange_identification|banner exchange|Not allowed at this time")
"""What `ssh` says where the connection ended before the login: `sshd`'s MaxStartups and its penalties."""


class Connection:
    """A host, and the program on it. A thread reads what it says: first of itself, then the training's output."""

    def __init__(self, host: str, place: Place, said: dict[str, Any], before: Sequence[list[str]] = ()) -> None:
        """`place`: where the run works there; `said`: what the host is told first. `before`: programs that are run here
        first.
        """
        self.host = host
        self.ready: Ready | None = None
        self.refusal: str | None = None
        self._started = False
        self._words = b""
        self._said = said
        self._command = [*SSH, "--", host, _command(place)]
        if before:
            sending = shell_line([*before])
            self._command = ["sh", "-c", f"({sending}) </dev/null >&2 && exec {shlex.join(self._command)}"]
        self._seconds = math.inf if before else SECONDS_TO_CONNECT
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        self._attempts = 0
        self._begun = self._due = 0.0
        self._is_over = False

    def connect(self) -> None:
        """Begin to connect."""
        self._attempts += 1
        self._words, self._begun = b"", time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._readers = [
            threading.Thread(target=target, args=(self._process,), daemon=True)
            for target in (self._read_output, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()
        self.say("launch", self._said)

    def poll(self) -> None:
        """Look whether the connection was dropped before the login, as a host does that is asked by many at once: it is
        to be connected again a little later.
        """
        if self._process is None or self.ready is not None or self._process.poll() is None:
            return
        for reader in self._readers:
            reader.join(timeout=1.0)
        was_dropped = self.is_lost and _DROPPED.search(self._words.decode(errors="replace")) is not None
        self._is_over = not was_dropped or self._attempts == MOST_ATTEMPTS
        if not self._is_over:
            pause = SECONDS_BEFORE_AGAIN * 2 ** (self._attempts - 1)
            self._due = time.monotonic() + pause * random.uniform(0.5, 1.5)  # others were dropped at the same moment
            self._process = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to connect."""
        return self._process is None and time.monotonic() >= self._due

    @property
    def is_connecting(self) -> bool:
        """Whether nothing has come of it yet."""
        return self._process is not None and not self.is_settled

    @property
    def code(self) -> int | None:
        """The exit code of the program there; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def can_start(self) -> bool:
        """Whether the host waits for its start."""
        return self.ready is not None and self.code is None

    @property
    def is_settled(self) -> bool:
        """Whether it is known whether the host can start."""
        is_slow = self._process is not None and time.monotonic() - self._begun > self._seconds
        return self.ready is not None or self._is_over or is_slow

    @property
    def names(self) -> set[str]:
        """What the host is called: by the job, without a user, and by itself."""
        own = self.ready.names if self.ready is not None else ()
        return {self.host, self.host.rpartition("@")[2], *own}

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, and not the program."""
        return self.code == CONNECTION_LOST or (self.code or 0) < 0

    @property
    def words(self) -> str:
        """Why there is nothing to be had from the host: its refusal, or what `ssh` said last."""
        if self.refusal is not None:
            return self.refusal
        lines = self._words.decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:_MOST_WORDS] if said else "it does not answer"

    def start(self, variables: dict[str, str]) -> None:
        """Have the host start its processes."""
        self._words = b""  # of the login
        self._started = True
        self.say("start", variables)

    def show_a_sign(self) -> None:
        """Tell the host that the launcher is there."""
        self._write(b"\n")

    def stop(self, seconds: float) -> None:
        """Ask the host to end what it started, after so many seconds by force."""
        self.say("stop", seconds)

    def say(self, kind: str, said: Any) -> None:
        """Send a message; a host that is gone does not hear it."""
        self._write(line_of(kind, said))

    def let_go(self) -> None:
        """End the connection, and with it what runs there."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()

    def close(self) -> None:
        """The same; and read to the end what it said."""
        self.let_go()
        if self._process is not None:
            self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1.0)

    def _write(self, line: bytes) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read_output(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while line := process.stdout.readline(_MOST_AT_ONCE):
            if self._started:
                _print(line)
            elif (message := read_message(line)) is not None:
                kind, said = message
                if kind == "ready":
                    self.ready = read_ready(said)
                elif kind == "refused":
                    self.refusal = str(said)[:_MOST_WORDS]

    def _read_errors(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        while line := process.stderr.readline(_MOST_AT_ONCE):
            if not self._started or line.startswith(_OF_SSH):
                self._words = (self._words + line)[-4096:]
            if self._started:
                _print(line)


def _command(place: Place) -> str:
    """What the shell of the host runs: our program there, in the folder that the run works in."""
    variables = [f"PYTHONPATH={place.python_path}"] if place.python_path else []
    program = module_command(HOST_MODULE, str(place.run.path), python=place.python)
    return f"cd {shlex.quote(str(place.working_directory))} && exec {shlex.join(['env', *variables, *program])}"


def _print(line: bytes) -> None:
    with suppress(OSError):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
