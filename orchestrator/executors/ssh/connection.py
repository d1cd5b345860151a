"""One host of a launch, from here: `ssh` as the user has it, which asks nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.executors.ssh.messages import CONNECTION_LOST, Ready, line_of, read_message, read_ready
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command

HOST_MODULE = "orchestrator.executors.ssh.host"
# A host that does not answer is given up after 15 seconds, which is less than it takes to give up the launcher.
OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    # A connection that others share does not end with its host, and ports can be forwarded by one alone.
    "ControlMaster": "no",
    "ControlPath": "none",
    "ClearAllForwardings": "yes",
}
_MOST_WORDS = 300
_MOST_AT_ONCE = 64 << 10
"""Bytes of a line: a progress bar may never end it."""
_OF_SSH = (b"ssh: ", b"client_loop: ", b"Timeout, server ", b"Connection ", b"packet_write_", b"Read from remote host ")
"""How lines begin that `ssh` itself writes, among those of the training."""


class Connection:
    """A host, and the program on it. A thread reads what it says: first of itself, then the training's output."""

    def __init__(self, host: str, run: RunDir, launch_id: str, python: str) -> None:
        self.host = host
        self.ready: Ready | None = None
        self.refusal: str | None = None
        self._started = False
        self._words = b""
        options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
        self._process = subprocess.Popen(
            ["ssh", "-T", *options, "--", host, _command(run, python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._readers = [
            threading.Thread(target=target, daemon=True) for target in (self._read_output, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()
        self.say("launch", launch_id)

    @property
    def code(self) -> int | None:
        """The exit code of the program there; None while it runs."""
        return self._process.poll()

    @property
    def can_start(self) -> bool:
        """Whether the host waits for its start."""
        return self.ready is not None and self.code is None

    @property
    def is_settled(self) -> bool:
        """Whether it is known whether the host can start."""
        return self.ready is not None or self.code is not None

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
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()

    def close(self) -> None:
        """The same; and read to the end what it said."""
        self.let_go()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1.0)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_MOST_AT_ONCE):
            if self._started:
                _print(line)
            elif (message := read_message(line)) is not None:
                kind, said = message
                if kind == "ready":
                    self.ready = read_ready(said)
                elif kind == "refused":
                    self.refusal = str(said)[:_MOST_WORDS]

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := self._process.stderr.readline(_MOST_AT_ONCE):
            if not self._started or line.startswith(_OF_SSH):
                self._words = (self._words + line)[-4096:]
            if self._started:
                _print(line)


def _command(run: RunDir, python: str) -> str:
    """What the shell of the host runs: our program there, in the folder that the launcher works in."""
    search_path = os.environ.get("PYTHONPATH")
    variables = [f"PYTHONPATH={shlex.quote(search_path)}"] if search_path else []
    program = [shlex.quote(word) for word in module_command(HOST_MODULE, str(run.path), python=python)]
    return f"cd {shlex.quote(str(Path.cwd()))} && exec env {' '.join([*variables, *program])}"


def _print(line: bytes) -> None:
    with suppress(OSError):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
