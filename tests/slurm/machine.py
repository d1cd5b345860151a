"""Machines made of Linux namespaces: a host name, a network, process ids and /etc/hosts of their own, shared files.

All of a machine hangs on one process: when it is killed, the machine's other processes and its network are gone, as in
a power failure. It is also killed when whatever booted the machine dies, so nothing outlives a test run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SYSTEM_FOLDERS = "/usr/sbin:/sbin"
PATIENCE = 120.0
"""Seconds that something may take on a machine that is busy with other things. Only what hangs takes as long."""

# It reaps orphans, as an init does. A look-up of a name is answered from /etc/hosts or refused at once.
INIT = """
    hostname "$1" && mount --bind "$2/hosts" /etc/hosts && ip link set lo up &&
    mount --bind "$2/resolv.conf" "$(readlink -f /etc/resolv.conf)" &&
    echo ready && exec >/dev/null && while :; do sleep 1000 & wait; done
"""


def hardware_address(number: int) -> str:
    """Of the machine whose address in its network ends with this number."""
    return f"02:00:00:00:00:{number:02x}"


class MachineError(Exception):
    """Machines cannot be had here; the message says why."""


def search_path() -> str:
    """PATH with the folders where daemons are."""
    return f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}"


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str], timeout: float = PATIENCE, pause: float = 0.1
) -> None:
    """Return when the condition holds, looked at after each `pause`, and less often the longer it takes: most looks
    start a program. AssertionError when it does not within `timeout` seconds.
    """
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        if waited > timeout:
            raise AssertionError(f"not within {timeout:g} s: {what() if callable(what) else what}")
        time.sleep(max(pause, min(waited / 20, 1.0)))


def run(
    *command: str, check: bool = True, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command with more environment variables. AssertionError when it fails, unless `check` is False."""
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": search_path(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 or not check, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done


class Machine:
    """A host name `name`; /etc/hosts and /etc/resolv.conf are the files `hosts` and `resolv.conf` of `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._init: subprocess.Popen[str] | None = None

    def boot(self) -> None:
        """Start it, with no network but loopback. Raises MachineError where namespaces are not allowed."""
        unshare = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *unshare, "sh", "-c", INIT, "init", self.name, str(self._folder)],
            env={**os.environ, "PATH": search_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._init.stdout is not None
        with self._init.stdout as output:
            line = output.readline().strip()
        if line != "ready":
            self.kill()
            raise MachineError(f"this machine gives no namespaces: {line}")

    @property
    def is_up(self) -> bool:
        return self._init is not None

    @property
    def pid(self) -> int:
        """A process in its network, as `ip link ... netns PID` wants it."""
        assert self._init is not None, f"{self.name} is not up"
        return self._init.pid

    @property
    def inside(self) -> int:
        """The first of its own processes, as it is known here."""
        [pid] = self._children()
        return pid

    def kill(self) -> None:
        """Power failure: all its processes and its network are gone."""
        if self._init is not None:
            # The first of the machine's process ids is not gone before all the others are.
            for pid in self._children() or [self.pid]:
                os.kill(pid, signal.SIGKILL)
            self._init.wait()
            self._init = None

    def _children(self) -> list[int]:
        return [*map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())]

    def run(
        self, *command: str, check: bool = True, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`run` on this machine."""
        return run(*self.entered(), *command, check=check, variables=variables)

    def ip(self, *command: str) -> None:
        """`ip` in its network. Process ids, as in `netns PID`, are those of this side."""
        run("nsenter", f"--net=/proc/{self.pid}/ns/net", "--", "ip", *command)

    def entered(self) -> list[str]:
        """What goes before a command line that is to run on this machine."""
        here = f"/proc/{self.pid}/ns"
        namespaces = [f"--net={here}/net", f"--uts={here}/uts", f"--mount={here}/mnt", f"--pid={here}/pid_for_children"]
        return ["nsenter", *namespaces, "--"]
