"""Creating a file that exactly one of several processes gets, on network file systems too."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from orchestrator.run_directory.rundir import sync_folder

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}


def create_exclusively(path: Path, content: bytes) -> bool:
    """Create a whole file if nothing has that name; True for exactly one of all callers, on NFS too."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        _write_new(temporary, content)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                return _create_by_name(path, content)
            # A lost NFS reply turns a link that worked into "exists": the count of links tells the truth.
            if os.stat(temporary).st_nlink != 2:
                if error.errno == errno.EEXIST:
                    return False
                raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def _create_by_name(path: Path, content: bytes) -> bool:
    try:
        _write_new(path, content)
    except FileExistsError:
        return False
    sync_folder(path.parent)
    return True


def _write_new(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
