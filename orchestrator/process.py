"""Naming a process so that another one, later or elsewhere, can tell whether it still lives."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_MOST_PIDS = 1 << 31


@dataclass(frozen=True)
class Process:
    """One process for all time: `started` (clock ticks since boot) guards against a reused pid, `boot` (the kernel's
    boot id and the pid namespace) against a restarted or another container on the same host name."""

    host: str
    boot: str
    pid: int
    started: int | None = None

    @classmethod
    def current(cls) -> Process:
        """This process."""
        pid = os.getpid()
        return cls(os.uname().nodename, _boot(), pid, _start_time(pid))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Process:
        """The process of a stored record; what is missing or of another type becomes unknown."""
        pid, started = record.get("pid"), record.get("started")
        return cls(
            host=host if isinstance(host := record.get("host"), str) else "?",
            boot=boot if isinstance(boot := record.get("boot"), str) else "?",
            pid=pid if type(pid) is int and 0 < pid < _MOST_PIDS else 0,
            started=started if type(started) is int else None,
        )

    def to_record(self) -> dict[str, Any]:
        """Fields for a JSON record."""
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """Whether it ran on this host, in this boot, where its pid means something to us."""
        return self.pid > 0 and self.host == os.uname().nodename and self.boot == _boot()

    @property
    def is_dead(self) -> bool:
        """True only when it is known to be gone: it ran here, and its pid is free, a zombie's or someone else's."""
        if not self.is_here:
            return False
        if not Path("/proc/self/stat").exists():
            return not _pid_exists(self.pid)
        started = _start_time(self.pid)
        return started is None or (self.started is not None and started != self.started)

    @property
    def is_alive(self) -> bool:
        """True only when it is known to run on this host."""
        return self.is_here and not self.is_dead


def seconds_since_start() -> float:
    """How long this process has been there; 0 where the system does not say."""
    started = _start_time(os.getpid()) if Path("/proc/self/stat").exists() else None
    if started is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))


@cache
def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None for a process that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold blanks and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
