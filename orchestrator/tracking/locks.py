"""Locks between the processes that send to MLflow, so that two of them never make two MLflow runs of one thing."""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.files.stored_files import open_to_append


class BusyError(OrchestratorError):
    """Another process is sending."""

    code = "tracking_is_held"


@contextmanager
def alone(path: Path, seconds: float, otherwise: str) -> Iterator[None]:
    """Hold the lock of a file, waiting so long for it. Raises BusyError, with the message `otherwise`."""
    with open_to_append(path, path.parent) as file:
        deadline = time.monotonic() + seconds
        while not _lock(file.fileno()):
            if time.monotonic() > deadline:
                raise BusyError(otherwise)
            time.sleep(0.1)
        yield  # closing the file releases the lock, and so does the end of this process


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # A file system without locks: the tags find the run again all the same.
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
    return True
