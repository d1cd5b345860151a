"""A folder that one process at a time may write."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import DataIsHeld, UserError

_NAME = "lock"
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What a file system says that has no locks (Lustre without -o flock): there, only people keep jobs apart."""


@contextmanager
def locked(folder: Path, wait: bool) -> Iterator[None]:
    """Make the folder where it is missing and hold it. The lock goes with the process, however that ends.

    Raises UserError when it cannot be written, and DataIsHeld when another process holds it and `wait` is false.
    """
    while True:
        descriptor = _opened(folder)
        _lock(descriptor, folder, wait)
        if _is_still_there(folder / _NAME, descriptor):
            break
        os.close(descriptor)  # whoever held it has finished, and removed the folder
    try:
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                return os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # removed in between
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror}", code="unwritable_folder") from error


def _lock(descriptor: int, folder: Path, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(descriptor)
        raise DataIsHeld(f"another process is writing {folder} now; wait for it or choose another prefix") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
