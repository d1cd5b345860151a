"""Running a command on a login node as if it had been typed there: once, whatever happens to the connection."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from orchestrator.errors import ConnectionLost, JobError
from orchestrator.login import agent
from orchestrator.login.archives import Project, package_archive
from orchestrator.login.connection import Connection, unreachable
from orchestrator.profile_files import LOGIN_VARIABLE
from orchestrator.safe_path import module_command
from orchestrator.spec.cluster import ClusterSpec

SECONDS_TO_CONNECT_AGAIN = 60.0
"""The agent ends a command that only shows something a little later."""
TRIES_TO_CONNECT = 3
"""How often more, where there was no connection yet."""
_FINAL = ("Permission denied", "verification failed", "Could not resolve")
"""What ssh says where it is of no use to try again."""
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
_PASSED_ON = ("TERM", "NO_COLOR", "FORCE_COLOR")

Word = str | tuple[str, str]
"""A word of a command line; a path in the `project` that is sent is a pair."""


@dataclass(frozen=True)
class Command:
    """A command for a login node."""

    cluster: ClusterSpec
    arguments: tuple[Word, ...]
    folder: str
    """Where the project is there."""
    project: Project | None = None
    """The code that it needs beside this package."""
    runs_dir: str = "runs"
    """The folder of the runs there, in that of the project."""
    only_shows: bool = False
    """Whether it changes nothing, and may be ended as soon as nobody looks."""
    variables: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    """The port here that leads to the server that it starts there."""
    prints_json: bool = False
    """Whether the address of that server is printed as JSON."""


def run_there(command: Command) -> int:
    """Run a command on its login node, with this process's standard streams; its exit code.

    Raises UserError when the node cannot be reached, and ConnectionLost when it cannot be reached again.
    """
    attempt = _Attempt(command)
    with attempt.signals():
        threading.Thread(target=attempt.type, daemon=True).start()
        while True:
            try:
                return attempt.follow()
            except ConnectionLost as error:
                attempt.wait(error)


class _Attempt:
    """A command, over one connection after the other."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._id = secrets.token_hex(16)
        self._offset = 0
        self._connection: Connection | None = None
        self._lost_since: float | None = None
        self._tries = 0
        self._was_connected = False
        self._interrupts = 0
        self._tunnel: subprocess.Popen[bytes] | None = None
        self._port_there: int | None = None
        self._said_first = b""
        self._archives = {"package": package_archive()}
        if command.project is not None:
            self._archives["project"] = command.project.archive

    def follow(self) -> int:
        """Connect, and print what the command prints until it has ended. Raises ConnectionLost."""
        connection = Connection(self._command.cluster)
        try:
            connection.agree(self._command.folder, self._archives)
            connection.request(self._request())
            self._connection = connection
            self._open_tunnel()
            return self._read(connection)
        finally:
            self._was_connected = self._was_connected or connection.has_answered
            self._connection = None
            self._close_tunnel()
            connection.close()

    def wait(self, error: ConnectionLost) -> None:
        """Wait for the next attempt. Raises UserError and ConnectionLost when there is none."""
        login, now = self._command.cluster.login, time.monotonic()
        if not self._was_connected:
            if self._tries == TRIES_TO_CONNECT or any(word in str(error) for word in _FINAL):
                raise unreachable(str(login), str(error)) from error
            time.sleep(_PAUSES[self._tries])
            self._tries += 1
            return
        if self._lost_since is None:
            self._lost_since, self._tries = now, 0
            print(f"the connection to {login} is lost ({error}); connecting again", file=sys.stderr, flush=True)
        if self._interrupts:
            raise KeyboardInterrupt
        if now - self._lost_since > SECONDS_TO_CONNECT_AGAIN:
            words = "" if self._command.only_shows else " What was asked for goes on there."
            raise ConnectionLost(
                f"the connection to {login} is lost ({error}).{words}\n"
                "      Run the same command again when it can be reached: it finds what has been done."
            ) from error
        time.sleep(_PAUSES[min(self._tries, len(_PAUSES) - 1)])
        self._tries += 1

    def _request(self) -> dict[str, Any]:
        command = self._command
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        size = shutil.get_terminal_size()
        variables |= {"COLUMNS": str(size.columns), LOGIN_VARIABLE: command.cluster.name, **command.variables}
        return {
            "id": self._id,
            "offset": self._offset,
            "arguments": [("python", ""), *module_command("orchestrator")[1:], *command.arguments],
            "variables": variables,
            "archives": {kind: archive.key() for kind, archive in self._archives.items()},
            "working_directory": "." if command.project is None else command.project.working_directory,
            "runs_dir": command.runs_dir,
            "only_shows": command.only_shows,
            "terminal": [size.lines, size.columns] if _is_terminal() else None,
        }

    def _read(self, connection: Connection) -> int:
        """Print what is said. Raises ConnectionLost, and JobError for a command that has vanished."""
        shown = time.monotonic()
        while True:
            found = connection.next(agent.SECONDS_BETWEEN_SIGNS)
            if time.monotonic() - shown > agent.SECONDS_BETWEEN_SIGNS:
                shown = time.monotonic()
                connection.say("here", None)
            if found is None:
                continue
            self._lost_since = None
            kind, content, length = found
            if kind == "out":
                self._offset += length
                self._show(content[0], agent.decoded(content[1]))
            elif kind == "ended":
                connection.say("thanks", None)
                return int(content)
            elif kind == "gone":
                raise JobError(
                    f"{self._command.cluster.login}: the command was killed there, or its machine was restarted.\n"
                    "      See what it has done with `orchestrator list`, then run it again.",
                    code="remote_command_killed",
                )

    def _show(self, stream: int, data: bytes) -> None:
        if self._command.port is not None and self._port_there is None and stream == 1:
            self._said_first += data
            if b"\n" in self._said_first:
                self._open_server(self._said_first)
            return
        target = (sys.stdout if stream == 1 else sys.stderr).buffer
        target.write(data)
        target.flush()

    def _open_server(self, line: bytes) -> None:
        """Say where the server is to be found here; what it says first is its address there."""
        said = json.loads(line)
        before, _, rest = str(said["address"]).removeprefix("http://").partition(":")
        there, _, path = rest.partition("/")
        self._port_there = int(there)
        self._open_tunnel()
        address = f"http://{before}:{self._command.port}/{path}"
        if self._command.prints_json:
            print(json.dumps({**said, "address": address}), flush=True)
        else:
            print(f"the dashboard of {self._command.cluster.name}: {address}  (Ctrl-C ends it)", flush=True)

    def _open_tunnel(self) -> None:
        if self._port_there is not None and self._connection is not None:
            assert self._command.port is not None
            self._tunnel = self._connection.forward(self._command.port, self._port_there)

    def _close_tunnel(self) -> None:
        if self._tunnel is not None:
            self._tunnel.terminate()
            self._tunnel.wait()
            self._tunnel = None

    def type(self) -> None:
        """Pass on what is typed here, in a thread of its own."""
        number = sys.stdin.fileno()
        if os.isatty(number) and not _is_terminal():
            return  # in the background, who reads from a terminal is stopped
        while True:
            data = os.read(number, 1 << 12)
            while (connection := self._connection) is None:
                time.sleep(0.1)
            connection.say("input", agent.encoded(data) if data else None)
            if not data:
                return

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Meanwhile Ctrl-C is for the command there; a second one leaves it alone."""

        def interrupted(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1
            if self._connection is None or self._interrupts > 1:
                raise KeyboardInterrupt
            self._connection.say("signal", int(signal.SIGINT))

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _is_terminal() -> bool:
    """Whether a person sits at all three streams, and this process is the one that they talk to."""
    with suppress(OSError, ValueError):
        is_there = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
        return is_there and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    return False
