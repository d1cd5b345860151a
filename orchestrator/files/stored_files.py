"""Reading the files of a run directory, which anybody may have written: one way to open a file, and one to parse it.

Only regular files inside their folder, links resolved, are opened. So no link leads a reader out of a run directory, no
pipe blocks it, and no file exhausts its memory: the size of reads and the nesting of JSON are limited. Text that is
shown on a terminal or a page later has no control characters. The folder itself may be reached through links, such as a
runs folder on another disk.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, overload

MOST_BYTES = 16 << 20
"""Of a file that is read whole."""
MOST_LINE_BYTES = 4 << 20
"""Of a line of JSON; the specs, records and messages that a run writes have some kilobytes."""
END_OF_TIME = 1e11
"""In seconds since the epoch: the year 5138, which calendars can still show."""
MOST_COUNTED = 1 << 62
"""A larger number in a damaged file is not a step, a sample or a size."""
_DEEPEST = 64
_TOO_DEEP = f"it nests deeper than {_DEEPEST} levels"
_HEAD_BYTES = 1 << 20
_MOST_BLANKS = 64
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Escape sequences of terminals: colours, window titles, cursor movements."""
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and line feed, and halves of UTF-16 pairs."""


DAMAGE = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""Errors that damaged content may cause in the code that uses it."""


class NotStoredError(OSError):
    """A path is not read: it is not a regular file, lies outside its folder, or is too large."""


def open_stored(path: Path, folder: Path) -> BinaryIO:
    """Open a regular file that lies below `folder`, links resolved. Raises FileNotFoundError, NotStoredError, and
    OSError for what the system refuses.
    """
    return os.fdopen(_open(path, folder, os.O_RDONLY), "rb")


def open_to_append(path: Path, folder: Path) -> BinaryIO:
    """The same to append to, unbuffered; the file is made where it is missing."""
    return os.fdopen(_open(path, folder, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab", buffering=0)


def read_stored(path: Path, folder: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file. Raises what `open_stored` does, and NotStoredError for one that is larger than `most`."""
    with open_stored(path, folder) as file:
        is_too_large = os.fstat(file.fileno()).st_size > most  # then nothing of it is read
        content = b"" if is_too_large else file.read(most + 1)
    if is_too_large or len(content) > most:
        raise _refused(errno.EINVAL, f"Too large: more than {most:,} bytes", path)
    return content


def read_json(path: Path, folder: Path, most: int = MOST_BYTES) -> Any:
    """The JSON value in a file. Raises what `read_stored` does, and ValueError for what is no JSON."""
    return parse_json(read_stored(path, folder, most))


def read_object(path: Path, folder: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none that can be read."""
    try:
        value = read_json(path, folder)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_json_lines(
    path: Path, folder: Path, most: int = MOST_BYTES, longest: int = MOST_LINE_BYTES
) -> Iterator[dict[str, Any]]:
    """The JSON objects of a line file; lines that hold none (torn by a crash) are left out, and those longer than
    `longest`; of a file that is larger than `most` the middle. A file that is missing has none. Raises OSError.
    """
    try:
        with open_stored(path, folder) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            parts = [file.read(min(most, _HEAD_BYTES) if size > most else most)]
            if size > most:
                file.seek(size - most + len(parts[0]))
                parts = [parts[0], b"\n", file.read(most - len(parts[0]))]
    except FileNotFoundError:
        return
    for line in b"".join(parts).splitlines():
        record = parse_line(line) if len(line) <= longest else None
        if record is not None:
            yield record


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line; None for anything else."""
    if not line[:_MOST_BLANKS].lstrip().startswith(b"{"):
        return None  # at once, where it is all zeros
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def parse_json(content: bytes, *, is_walked: bool = True) -> Any:
    """The value of a JSON text, its strings as `printable`. Raises ValueError for what is none, or nests too deeply for
    those who walk through it, if anybody does.
    """
    text = content.decode("utf-8-sig")
    may_be_deep = is_walked and content.count(b"[") + content.count(b"{") > _DEEPEST
    try:
        value = json.loads(text)
        return value if is_plain(content) and not may_be_deep else _printable_value(value, 0)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def is_plain(content: bytes) -> bool:
    """Whether all strings of a JSON text are `printable`: escapes aside, it has no control characters but this one."""
    return b"\\" not in content and content.isascii() and b"\x7f" not in content


def _printable_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return printable(value)
    if depth > _DEEPEST:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, list):
        return [_printable_value(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {printable(key): _printable_value(each, depth + 1) for key, each in value.items()}
    return value


def printable(text: str) -> str:
    """A text without terminal escapes, control characters and characters that cannot be encoded."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", without_escapes(text))


def is_name(text: str) -> bool:
    """Whether a job or a sweep can be called so: a folder of any other name was made by somebody else."""
    return printable(text) == text and "\n" not in text


def without_escapes(text: str) -> str:
    """A text without terminal escape sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def lines_from(file: BinaryIO, offset: int, most: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines from a byte on, about `most` bytes of them, each with the byte after it; the last, without an end,
    waits. Of a line that is longer than any that counts nothing is kept but its end: it comes as an empty one.
    """
    file.seek(offset)
    begun = offset
    while offset - begun < most:
        line = file.readline(MOST_LINE_BYTES)
        if not line.endswith(b"\n") and len(line) == MOST_LINE_BYTES:
            end = end_of_line(file, most)
            if end is None:
                return
            line, offset = b"", end
        elif not line.endswith(b"\n"):
            return
        else:
            offset += len(line)
        yield line, offset


def end_of_line(file: BinaryIO, most: int) -> int | None:
    """The byte after a line that has begun, with no more of it in memory than some megabytes; None where it has no end
    yet. After `most` bytes a place within it: the rest of it is then a line of its own.
    """
    begun = file.tell()
    while chunk := file.readline(MOST_LINE_BYTES):
        if chunk.endswith(b"\n"):
            return file.tell()
        if not chunk.strip(b"\0"):
            begun += past_a_hole(file)
        if file.tell() - begun > most:
            return file.tell()
    return None


def past_a_hole(file: BinaryIO) -> int:
    """Go on behind a part that was never written, if one begins here: it would take hours. The bytes passed over."""
    place, raw = file.tell(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
    try:
        data = os.lseek(file.fileno(), place, os.SEEK_DATA)
    except OSError as error:  # nothing is written behind it; or the file system does not say
        data = os.fstat(file.fileno()).st_size if error.errno == errno.ENXIO else place
    os.lseek(file.fileno(), raw, os.SEEK_SET)
    file.seek(data)
    return data - place


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if it is missing or not a regular file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def listed(folder: Path, root: Path) -> list[str]:
    """The names in a folder inside `root`, links resolved; none if it is outside or cannot be listed."""
    try:
        descriptor = _open(folder, root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        return sorted(os.listdir(descriptor))
    except OSError:  # gone meanwhile
        return []
    finally:
        os.close(descriptor)


@overload
def number(value: Any, default: float, *, least: float = ..., most: float = ...) -> float: ...


@overload
def number(value: Any, default: None = None, *, least: float = ..., most: float = ...) -> float | None: ...


def number(
    value: Any, default: float | None = None, *, least: float = -math.inf, most: float = math.inf
) -> float | None:
    """A stored value as a finite number within bounds; `default` where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        found = float(value)
    except OverflowError:
        return default
    return found if math.isfinite(found) and least <= found <= most else default


def moment(value: Any) -> float | None:
    """A stored time in seconds since the epoch that a calendar can show; None for anything else."""
    return number(value, least=0.0, most=END_OF_TIME)


def count(value: Any) -> int | None:
    """A stored value as a count; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MOST_COUNTED else None


def _open(path: Path, folder: Path, flags: int) -> int:
    """A descriptor of what lies below `folder`. Where no name on the way is a link it is opened at once; else by what
    the links lead to, where no name may be one: a link that is put there meanwhile leads nowhere.
    """
    try:
        names = path.relative_to(folder).parts
        if ".." in names or not names:
            raise _refused(errno.EINVAL, "No file of this folder", path)
        return _walk(folder, names, path, flags)
    except _LinkError:
        return _walk(*_resolved(path, folder), path, flags)
    except ValueError as error:  # a name with a NUL, or another folder's file
        raise _refused(errno.EINVAL, "No file of this folder", path) from error


class _LinkError(OSError):
    """A name on the way is a link."""


def _resolved(path: Path, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder, and the names below it, that a path with links resolves to."""
    root = Path(os.path.realpath(folder))
    real = Path(os.path.realpath(path, strict=True))
    if root not in real.parents:
        raise _refused(errno.ELOOP, "A link that leads out of its folder", path)
    return root, real.relative_to(root).parts


def _walk(folder: Path, names: tuple[str, ...], path: Path, flags: int) -> int:
    """Open the file that the names lead to from a folder, one by one; none of them may be a link."""
    *between, last = names
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in between:
            below = _open_at(place, name, path, os.O_RDONLY | os.O_DIRECTORY)
            os.close(place)
            place = below
        return _open_at(place, last, path, flags)
    except OSError as error:
        error.filename = str(path)  # of what the caller named
        raise
    finally:
        os.close(place)


def _open_at(place: int, name: str, path: Path, flags: int) -> int:
    try:
        kind = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    else:
        if stat.S_ISLNK(kind):
            raise _LinkError(errno.ELOOP, os.strerror(errno.ELOOP))
        _check_kind(kind, path, flags)  # opening a device alone may do something
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644, dir_fd=place)
    try:
        _check_kind(os.fstat(descriptor).st_mode, path, flags)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(kind: int, path: Path, flags: int) -> None:
    if flags & os.O_DIRECTORY:
        if not stat.S_ISDIR(kind):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    elif stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    elif not stat.S_ISREG(kind):
        raise _refused(errno.EINVAL, "Not a regular file", path)


def _refused(number: int, why: str, path: Path) -> NotStoredError:
    return NotStoredError(number, why, str(path))
