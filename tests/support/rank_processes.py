"""Ranks that a `RankStarter` has started, and waiting for them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """Ranks that were started. The exit code is in the file `done` when all have ended."""

    supervisor: int
    ranks: list[int]
    done: Path

    def poll(self) -> int | None:
        """0 when every rank succeeded, 1 when one did not, None while some run."""
        return int(self.done.read_text()) if self.done.exists() else None

    def wait(self, timeout: float = 240) -> int:
        """The exit code; on time-out everything is killed."""
        ended = self.watched()
        select.select([ended], [], [], timeout)
        os.close(ended)
        if (code := self.poll()) is None:
            self.signal(signal.SIGKILL)
            raise TimeoutError(f"the ranks did not end within {timeout} s")
        return code

    def watched(self) -> int:
        """A descriptor that can be read once all have ended: to look again and again takes a hundredth of a core."""
        try:
            return os.pidfd_open(self.supervisor)
        except ProcessLookupError:  # it has ended
            return os.open(os.devnull, os.O_RDONLY)

    def signal(self, number: int) -> None:
        """Send a signal to every rank."""
        for pid in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
