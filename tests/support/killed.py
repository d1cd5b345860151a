"""Work in a process of its own that is killed at a moment of one's choice, as by `kill -9`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from orchestrator.errors import OrchestratorError

DONE, REFUSED, FAILED = 0, 2, 3

_CHANGES = {"os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir", "os.utime"}
_WRITES = os.O_WRONLY | os.O_RDWR


def killed_before_change(number: int, work: Callable[[], object]) -> int | None:
    """Do it in a forked process that kills itself before its n-th change of the file system, counted from 0; how it
    ended where it came to its end before that.
    """
    pid = os.fork()
    if pid == 0:
        left = number

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        sys.addaudithook(count)
        code = FAILED
        try:
            work()
            code = DONE
        except OrchestratorError:
            code = REFUSED
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


class Training:
    """A process that takes a run's lease, as a training does, and holds it until it is told to end or is killed."""

    def __init__(self, start: Callable[[], Callable[[], object]]) -> None:
        """`start` is what it does first, and returns what it does at its end."""
        heard, said = os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = FAILED
            try:
                os.close(heard[1])
                os.close(said[0])
                try:
                    end = start()
                except (OrchestratorError, OSError):
                    code = REFUSED
                    os._exit(code)
                os.write(said[1], b"started")
                os.close(said[1])
                if os.read(heard[0], 1):
                    end()
                code = DONE
            finally:
                os._exit(code)
        os.close(heard[0])
        os.close(said[1])
        self._heard, self._said = heard[1], said[0]

    def has_started(self) -> bool:
        """Whether it holds the run; waits until that is known."""
        return bool(os.read(self._said, 16))

    def end(self) -> None:
        """Let it end by itself."""
        os.write(self._heard, b"x")
        self._wait()

    def kill(self) -> None:
        """Kill it."""
        os.kill(self._pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        os.waitpid(self._pid, 0)
        os.close(self._heard)
        os.close(self._said)
