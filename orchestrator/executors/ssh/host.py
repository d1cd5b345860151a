"""`python -m orchestrator.executors.ssh.host RUN_DIR`: a machine's part of a launch, at the far end of a connection.

It starts the launch script and becomes its guard: when the launcher asks for it, or is not heard of any more, it ends
all that it started. Nothing stays behind on a host that was cut off.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchestratorError
from orchestrator.executors.ssh.messages import SECONDS_WITHOUT_SIGN, Ready, line_of, read_message, ready_line
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE, end_processes
from orchestrator.launch.processes.stop_request import stop_at_once
from orchestrator.run_directory.events.types import Launched
from orchestrator.run_directory.rundir import RunDir

SECONDS_TO_SAVE = 30.0
"""How long processes that were asked to end may take over it."""
_POLL_SECONDS = 0.2


class Launcher:
    """The launcher, as it is heard on standard input."""

    def __init__(self) -> None:
        self._rest = b""
        self._heard = time.monotonic()
        self.is_gone = False

    def listen(self, seconds: float) -> list[tuple[str, Any]]:
        """The messages that arrive within that time, which may be none."""
        if not self.is_gone and select.select([0], [], [], seconds)[0]:
            said = os.read(0, 1 << 16)
            self._heard = time.monotonic()
            self.is_gone = not said
            *lines, self._rest = (self._rest + said).split(b"\n")
            return [message for line in lines if (message := read_message(line)) is not None]
        self.is_gone |= time.monotonic() - self._heard > SECONDS_WITHOUT_SIGN
        return []

    def wait_for(self, kind: str) -> Any:
        """The content of the next message of that kind; None once the launcher is gone."""
        while not self.is_gone:
            for heard, said in self.listen(_POLL_SECONDS):
                if heard == kind:
                    return said
        return None


def main() -> int:
    """Take part in a launch; returns the exit code of its script, and 1 where there was none."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a connection that ends, which is heard on standard input
    run, launcher = RunDir(Path(sys.argv[1])), Launcher()
    launch_id = launcher.wait_for("launch")
    if launch_id is None:
        return 1
    if (refusal := _refusal(run, str(launch_id))) is not None:
        _say(line_of("refused", refusal))
        return 1
    _say(ready_line(Ready(_own_address(), _free_port())))
    variables = launcher.wait_for("start")
    if not isinstance(variables, dict):
        return 1
    environment = {**os.environ, **{str(name): str(value) for name, value in variables.items()}}
    environment[LAUNCH_VARIABLE] = str(launch_id)
    return _guard(run, str(launch_id), launcher, environment)


def _refusal(run: RunDir, launch_id: str) -> str | None:
    """Why this host cannot take part. Processes of earlier launches of the run, which were cut off, are ended."""
    try:
        launches = [str(event.launch_id) for event in run.events().all(Launched)]
    except (OSError, OrchestratorError) as error:
        return f"the run directory {run.path} cannot be read there: {error}"
    if launch_id not in launches:
        return f"{run.path} is not the same folder there: the run directory has to be on a file system that hosts share"
    for earlier in launches:
        if earlier != launch_id:
            end_processes(earlier)
    return None


def _own_address() -> str:
    """Where the launcher has reached this host: the other hosts are in one network with it."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else socket.gethostname()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def _guard(run: RunDir, launch_id: str, launcher: Launcher, environment: dict[str, str]) -> int:
    """Run the launch script to its end, or until the launcher asks for that, or is gone."""
    child = subprocess.Popen(
        ["bash", str(run.launch_script)], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    while (code := child.poll()) is None:
        asked = [said for kind, said in launcher.listen(_POLL_SECONDS) if kind == "stop"]
        if asked or launcher.is_gone:
            patience = asked[0] if asked and isinstance(asked[0], int | float) else SECONDS_TO_SAVE
            end_processes(launch_id, grace=0.0 if stop_at_once(run) else patience)
            code = child.wait()
            break
    if code != 0:
        end_processes(launch_id)  # a killed torchrun leaves its ranks behind
    return 128 - code if code < 0 else code


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
