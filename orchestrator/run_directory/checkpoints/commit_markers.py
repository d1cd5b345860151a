"""Which checkpoints a run has and whether they are whole, without torch: read from their commit markers.

A checkpoint exists when its `commit.json` does. It is written last and names every file with its size and CRC-32, so
a torn or damaged checkpoint can be told from a whole one without loading it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from orchestrator.files.stored_files import NotStoredError, count, open_stored, read_json
from orchestrator.run_directory.rundir import RunDir, write_atomically

COMMIT_FILE = "commit.json"
MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron-LM names its latest checkpoint in it."""
CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
    "chained_optim_avoid_prefix": True,
}
"""What a checkpoint says of how its tensors are named and cut, as megatron-core has it."""
_CHUNK_BYTES = 4 << 20
_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Replaces a control character in text that is read."""
_MOST_MARKER_BYTES = 64 << 20
_MOST_THREADS = 8
_FEW_SIZES = 8
"""Files whose sizes are compared sooner than threads are started for them."""


class FileRecord(NamedTuple):
    """One file of a checkpoint: its size and `zlib.crc32` of its content."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class Commit:
    """A committed checkpoint. `details` holds everything else that the marker says."""

    path: Path
    iteration: int
    consumed_samples: int
    files: Mapping[str, FileRecord]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(record.bytes for record in self.files.values())

    @property
    def consumed_tokens(self) -> int | None:
        """Tokens that the training had read; None if not recorded, as in checkpoints of earlier versions."""
        tokens = self.details.get("consumed_tokens")
        return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else None

    @property
    def imported_as(self) -> str | None:
        """The name of the family that its weights were imported as, at first; None where they were not."""
        family = self.details.get("family")
        return family if isinstance(family, str) else None


def file_record(path: Path) -> FileRecord:
    """Size and CRC-32 of a file's content. Raises OSError when it cannot be read."""
    with open(path, "rb") as file:
        return _record_of(file)


def _record_of(file: BinaryIO) -> FileRecord:
    size = crc = 0
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        crc = zlib.crc32(chunk, crc)
    return FileRecord(size, crc)


def write_commit(
    path: Path, *, iteration: int, consumed_samples: int, files: Mapping[str, FileRecord], **details: Any
) -> None:
    """Declare the checkpoint in `path` whole. `files` by name relative to it; `details` must be JSON values."""
    record = {
        **details,
        "iteration": iteration,
        "consumed_samples": consumed_samples,
        "files": {name: {"bytes": files[name].bytes, "crc32": files[name].crc32} for name in sorted(files)},
    }
    write_atomically(path / COMMIT_FILE, json.dumps(record, indent=1))


class _LeadsOutError(ValueError):
    """A marker names what is not in its folder."""


def read_commit(path: Path) -> Commit | None:
    """The commit marker of a checkpoint folder; None where there is none that can be read, or one that names files
    outside the folder: a checkpoint may come from anywhere.
    """
    found = _read(path)
    return found if isinstance(found, Commit) else None


def damage_of_marker(path: Path) -> str | None:
    """Why `read_commit` has nothing to say of a folder; None where it has."""
    if not (path / COMMIT_FILE).exists():
        return f"{path} has no {COMMIT_FILE}: it was never finished"
    found = _read(path)
    return f"{path / COMMIT_FILE} is damaged: {found}" if isinstance(found, str) else None


def _read(path: Path) -> Commit | str:
    """The marker, or why it is none."""
    try:
        # A folder of checkpoints may be a link to another disk; a checkpoint is read from its own folder alone.
        record = read_json(path / COMMIT_FILE, path, _MOST_MARKER_BYTES)
        return Commit(
            path=path,
            iteration=_count(record["iteration"]),
            consumed_samples=_count(record["consumed_samples"]),
            files={
                _inside(name): FileRecord(_count(entry["bytes"]), _count(entry["crc32"]))
                for name, entry in record["files"].items()
            },
            details={
                key: value for key, value in record.items() if key not in ("iteration", "consumed_samples", "files")
            },
        )
    except _LeadsOutError as error:
        return f"it names {error}, which is not a file in this folder"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return "it is not a commit marker"


def _count(value: Any) -> int:
    found = count(value)
    if found is None:
        raise ValueError(f"{value!r:.40} is no count")
    return found


def _inside(name: str) -> str:
    """A file's name as it is written in one way only, within its folder. Raises _LeadsOutError."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name or _UNREADABLE in name:
        raise _LeadsOutError(json.dumps(name))
    return name


def verify(path: Path, *, contents: bool = True, part: tuple[int, int] = (0, 1)) -> list[str]:
    """What is wrong with a checkpoint, one message per finding; empty when it is whole.

    Reads every byte; with `contents=False` only sizes are compared. `part` (i, n) looks at every n-th file, from the
    i-th on, by size: n readers that take a part each read about the same, with a share each of the cores.
    """
    from concurrent.futures import ThreadPoolExecutor  # takes long to import, and most commands verify nothing

    if not path.is_dir():
        return [f"{path} is not a folder"]
    commit = read_commit(path)
    if commit is None:
        return [damage_of_marker(path) or f"{path / COMMIT_FILE} changed while it was read"]
    by_size = sorted(commit.files, key=lambda name: (commit.files[name].bytes, name))[part[0] :: part[1]]
    names = sorted(by_size)

    def look(name: str) -> str | None:
        return verify_file(path / name, path, commit.files[name], contents)

    if not contents and len(names) <= _FEW_SIZES:
        findings = [look(name) for name in names]
    else:
        threads = max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // part[1]))
        with ThreadPoolExecutor(threads) as pool:
            findings = [*pool.map(look, names)]
    return [finding for finding in findings if finding is not None]


def verify_file(path: Path, folder: Path, expected: FileRecord, contents: bool) -> str | None:
    try:
        with open_stored(path, folder) as file:  # reading a device or a pipe might never end
            size = os.fstat(file.fileno()).st_size
            if size != expected.bytes:
                return f"{path} is damaged: it has {size} bytes instead of {expected.bytes}"
            if contents and (found := _record_of(file)) != expected:
                return f"{path} is damaged: its CRC-32 is {found.crc32:08x} instead of {expected.crc32:08x}"
    except FileNotFoundError:
        return f"{path} is missing"
    except NotStoredError:
        return f"{path} is damaged: it is not a regular file"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def committed(run: RunDir) -> list[Commit]:
    """The committed checkpoints of a run, oldest first; files are not looked at."""
    commits = (read_commit(path) for _, path in run.checkpoint_dirs())
    return [commit for commit in commits if commit is not None]
