"""A folder that one process at a time may write."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import UserError

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What a file system says that has no locks (Lustre without -o flock): there, only people keep jobs apart."""


@contextmanager
def locked(folder: Path, wait: bool) -> Iterator[None]:
    """Make the folder where it is missing and hold it. The lock goes with the process, however that ends.

    Raises UserError when it cannot be written, or when another process holds it and `wait` is false.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(descriptor)
        raise UserError(f"another process is writing {folder} now; wait for it or choose another prefix") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)
