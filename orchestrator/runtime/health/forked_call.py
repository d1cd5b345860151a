"""A call that cannot hang its caller: it happens in a process of its own, which is killed when its time is over."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 1 << 16


class CallFailedError(Exception):
    """The function raised, or its process was killed; the message says which. `kind`: the type of what it raised."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def call(function: Callable[[], Any], seconds: float) -> Any:
    """What the function returns (anything JSON can hold), from a fork of this process.

    Raises CallFailedError when it raised or was killed, TimeoutError when it took longer. It dies with this process.
    """
    reader, writer = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(reader)
        _be_the_fork(function, writer, parent)
    os.close(writer)
    try:
        said = _read(reader, time.monotonic() + seconds)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        # A process that waits for a dead file system dies when that answers: it is not waited for.
        os.waitpid(pid, os.WNOHANG)
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
    finally:
        os.close(reader)
    _, status = os.waitpid(pid, 0)
    if not said:
        raise CallFailedError(f"its process was killed by signal {os.WTERMSIG(status)}" if status else "no answer")
    answer = json.loads(said)
    if "kind" in answer:
        raise CallFailedError(answer["message"], answer["kind"])
    return answer["value"]


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends (Linux; elsewhere it ends in its own time)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def one_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _read(reader: int, deadline: float) -> bytes:
    """Everything up to the end of the pipe. Raises TimeoutError."""
    said = b""
    while True:
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(reader, _CHUNK_BYTES)
        if not chunk:
            return said
        said += chunk


def _be_the_fork(function: Callable[[], Any], writer: int, parent: int) -> None:
    """Call the function and leave its answer in the pipe. Never returns."""
    die_with(parent)
    try:
        answer = {"value": function()}
    except BaseException as error:  # the boundary of a process: whatever happened is told
        answer = {"kind": type(error).__name__, "message": one_line(error)}
    _write(writer, json.dumps(answer).encode())
    # No clean-up: what the parent had open belongs to the parent.
    os._exit(0)


def _write(writer: int, data: bytes) -> None:
    while data:
        data = data[os.write(writer, data) :]
