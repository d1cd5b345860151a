"""`python -m orchestrator.executors.ssh.host RUN_DIR`: a machine's part of a launch, at the far end of a connection.

It starts the launch script and guards it: when the launcher asks for it, or is not heard of any more, it ends all that
it started. Nothing stays behind on a host that was cut off.
"""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestratorError
from orchestrator.executors.ssh.messages import (
    CONNECTION_LOST,
    SECONDS_WITHOUT_SIGN,
    Ready,
    line_of,
    read_message,
    ready_line,
)
from orchestrator.launch.processes.child_commands import tied
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE, end_processes
from orchestrator.launch.processes.stop_request import stop_at_once
from orchestrator.run_directory.events.types import Launched
from orchestrator.run_directory.lease import release_for_the_dead
from orchestrator.run_directory.rundir import RunDir, write_atomically

GUARD_VARIABLE = "ORCHESTRATOR_HOST_GUARD"
"""In the environment of what this program has started. The launch id alone may also be that of the launcher's own
processes, where its machine is one of the hosts.
"""
SECONDS_TO_SAVE = 30.0
"""How long processes may take to end where nobody says how long."""
SECONDS_TO_GO = 2.0
"""How long what is left may take to end after the script has."""
_POLL_SECONDS = 0.2


class Launcher:
    """The launcher, as it is heard on standard input."""

    def __init__(self, source: int = 0) -> None:
        self._source = source
        self._rest = b""
        self._messages: deque[tuple[str, Any]] = deque()
        self._heard = time.monotonic()
        self.is_gone = False

    def listen(self, seconds: float) -> tuple[str, Any] | None:
        """The next message; None where none arrives within that time."""
        if not self._messages and not self.is_gone:
            if select.select([self._source], [], [], seconds)[0]:
                said = os.read(self._source, 1 << 16)
                self._heard = time.monotonic()
                self.is_gone = not said
                *lines, self._rest = (self._rest + said).split(b"\n")
                self._messages.extend(message for line in lines if (message := read_message(line)) is not None)
            else:
                self.is_gone = time.monotonic() - self._heard > SECONDS_WITHOUT_SIGN
        return self._messages.popleft() if self._messages else None

    def wait_for(self, kind: str) -> Any:
        """The content of the next message of that kind, without those before it; None once the launcher is gone."""
        while True:
            message = self.listen(_POLL_SECONDS)
            if message is not None and message[0] == kind:
                return message[1]
            if message is None and self.is_gone:
                return None


def main() -> int:
    """Take part in a launch; returns the exit code of its script, and 1 where there was none."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a connection that ends, which is heard on standard input
    run, launcher = RunDir(Path(sys.argv[1])), Launcher()
    launch = launcher.wait_for("launch")
    if not isinstance(launch, dict):
        return 1
    launch_id, earlier = str(launch.get("id")), launch.get("earlier")
    if isinstance(earlier, list):  # the run directory is copied to this host once it is ready
        _end_earlier(earlier)
    elif (refusal := _refusal(run, launch_id)) is not None:
        _say(line_of("refused", refusal))
        return 1
    _say(ready_line(Ready(_own_address(), _free_port(), (socket.gethostname(), socket.getfqdn()))))
    variables = launcher.wait_for("start")
    if not isinstance(variables, dict):
        return 1
    environment = {**os.environ, **{str(name): str(value) for name, value in variables.items()}}
    code = _guard(run, launcher, {**environment, LAUNCH_VARIABLE: launch_id})
    return 1 if code == CONNECTION_LOST else code


def _refusal(run: RunDir, launch_id: str) -> str | None:
    """Why this host cannot take part. Processes of earlier launches of the run, which were cut off, are ended."""
    try:
        launches = [str(event.launch_id) for event in run.events().all(Launched)]
    except (OSError, OrchestratorError) as error:
        return f"the run directory {run.path} cannot be read there: {error}"
    if launch_id not in launches:
        return (
            f"{run.path} is not the same folder there: the run directory has to be on a file system that hosts share, "
            "or for a single host launch.copy_to has to say where it is copied to"
        )
    if launches[-1] != launch_id:
        return "a newer start of the run has taken over"
    _end_earlier(launches[:-1])
    return None


def _end_earlier(launches: Sequence[Any]) -> None:
    for earlier in launches:
        end_processes(str(earlier))


def _own_address() -> str:
    """Where the launcher has reached this host: the other hosts are in one network with it. Where the launcher is on
    this host, the host's name.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    try:
        is_reached = len(words) == 4 and not ipaddress.ip_address(words[2].partition("%")[0]).is_loopback
    except ValueError:
        is_reached = False
    return words[2] if is_reached else socket.gethostname()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def _guard(run: RunDir, launcher: Launcher, environment: dict[str, str]) -> int:
    """Run the launch script to its end, or until the launcher asks for that, or is gone."""
    mark = uuid.uuid4().hex
    child = subprocess.Popen(
        tied("bash", str(run.launch_script)),
        stdin=subprocess.DEVNULL,
        env={**environment, GUARD_VARIABLE: mark},
        start_new_session=True,
    )
    while child.poll() is None:
        message = launcher.listen(_POLL_SECONDS)
        if message is not None and message[0] == "stop_file":
            write_atomically(run.stop_file, str(message[1]))
        is_asked = message is not None and message[0] == "stop"
        if is_asked or launcher.is_gone:
            seconds = message[1] if message is not None and is_asked else SECONDS_TO_SAVE
            patience = float(seconds) if isinstance(seconds, int | float) else SECONDS_TO_SAVE
            _stop(run, child, patience)
    # What is left now has been left behind. Again: a process that is becoming another program was not found.
    end_processes(mark, SECONDS_TO_GO, GUARD_VARIABLE)
    end_processes(mark, variable=GUARD_VARIABLE)
    with suppress(OSError):  # of the file system that was lost: the next start waits for a minute
        release_for_the_dead(run, environment[LAUNCH_VARIABLE])
    code = child.returncode
    return 128 - code if code < 0 else code


def _stop(run: RunDir, child: subprocess.Popen[bytes], patience: float) -> None:
    """Have torchrun end its ranks, so that it says in its report that it was not they who failed; then end it."""
    child.terminate()
    deadline = time.monotonic() + patience
    while child.poll() is None:
        if time.monotonic() > deadline or stop_at_once(run):
            child.kill()
        time.sleep(_POLL_SECONDS)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
