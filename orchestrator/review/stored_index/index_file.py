"""The index of a folder's runs: summaries that were read once, and what their runs' files looked like then.

    RUNS_DIR/.cache/runs-UID.index      or, where nothing can be written there, ~/.cache/orchestrator/runs/….index

The first line has the version, the length of the rest and its checksum. The others are JSON texts with tabs between
them: a spec that others are like (`Base`), or a run: its signature and summary, its spec as differences from
a base, and its status. Whoever reads it compares each signature with the run's files: what differs is read again. So it
can be deleted, or be old, at any time.

It is an input like any other file: written under a random name and renamed into place, of bounded size, read as JSON
of the types that a summary has; and nobody reads one of another user than the owner of the runs folder. Several writers
replace each other's files, which costs their readers time alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from orchestrator.files.stored_files import END_OF_TIME, MOST_COUNTED, is_plain, open_stored, parse_json
from orchestrator.imports import staying
from orchestrator.launch.states.state_words import State
from orchestrator.review.damage import DAMAGE
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.stored_index.signatures import Signature, Stat, is_certain
from orchestrator.review.stored_index.spec_fields import Base, SpecFields, like_others
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.rundir import RunDir
from orchestrator.version import __version__

_STATES: Mapping[str, State] = {state: state for state in get_args(State)}
_VERSION = f"1 {__version__}"
"""Of the lines, and of what summaries say."""
_MOST_BYTES = 256 << 20
_LEAST_NEW = 32
"""Runs that an index must lack, or have too many, to be written again: fewer are read as fast."""
_PARTS_OF_A_RUN = 3
"""Of a line; a base is its own."""


@dataclass(frozen=True)
class Entry:
    """A run as it was when its files looked so."""

    summary: RunSummary
    signature: Signature


def read_index(runs_dir: Path) -> dict[str, Entry]:
    """What is known of the runs of a folder by their absolute paths; nothing where no index can be trusted."""
    for path, folder in _places(runs_dir):
        try:
            with open_stored(path, folder) as file:
                if os.fstat(file.fileno()).st_uid not in _trusted(runs_dir):
                    continue
                content = file.read(_MOST_BYTES)
        except OSError:
            continue
        with staying():
            return _entries(content, str(runs_dir.absolute()))
    return {}


def is_known(entry: Entry | None, signature: Signature) -> bool:
    """Whether an entry says what a run is whose files look so now."""
    return entry is not None and entry.signature == signature


def _says_as_much(entry: Entry | None, now: Entry) -> bool:
    return (
        entry is not None
        and entry.signature == now.signature
        and (entry.summary.goodput is not None or now.summary.goodput is None)
    )


def write_index(runs_dir: Path, known: Mapping[str, Entry], stored: Mapping[str, Entry]) -> bool:
    """Keep what is `known` of a folder's runs and will stay so, where it is not much the same as is `stored`; returns
    whether it is not. Where nothing can be written, nothing is kept.
    """
    kept = {path: each for path, each in known.items() if each.summary.is_settled and is_certain(each.signature)}
    same = sum(_says_as_much(stored.get(path), each) for path, each in kept.items())
    if len(kept) + len(stored) - 2 * same < _LEAST_NEW:
        return False
    content = _content(kept.values())
    for path, _ in islice(_places(runs_dir), 2):
        with contextlib.suppress(OSError):
            _replace(path, content)
            break
    return True


def _trusted(runs_dir: Path) -> tuple[int, int]:
    """Whose index is read."""
    return os.getuid(), os.stat(runs_dir).st_uid


def _places(runs_dir: Path) -> Iterator[tuple[Path, Path]]:
    """Where an index may be, each with the folder that it may not lead out of; one's own first."""
    runs_dir = runs_dir.absolute()
    yield runs_dir / ".cache" / f"runs-{os.getuid()}.index", runs_dir
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestrator" / "runs"
    yield home / f"{hashlib.sha256(os.fsencode(runs_dir)).hexdigest()[:32]}.index", home
    with contextlib.suppress(OSError):
        yield runs_dir / ".cache" / f"runs-{os.stat(runs_dir).st_uid}.index", runs_dir


def _replace(path: Path, content: bytes) -> None:
    """Rename it into place. The name before that is random: others may write in this folder, and put links there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _content(entries: Iterable[Entry]) -> bytes:
    bases: dict[Base, int] = {}
    runs = []
    for entry in sorted(entries, key=lambda entry: entry.summary.run.path):  # those of a name are alike
        summary = entry.summary
        spec = like_others(summary.spec, bases)
        number = bases.setdefault(spec.base, len(bases))
        told = [summary.run.name, summary.run.run_id, number, entry.signature, *_encoded(summary)]
        runs.append("\t".join((_text(told), spec.differences, summary.record)))
    content = "\n".join((*(base.text for base in bases), *runs)).encode()
    return _head(content) + content


def _head(content: bytes) -> bytes:
    return f"{_VERSION} {len(content)} {zlib.crc32(content):08x}\n".encode()


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _entries(written: bytes, runs_dir: str) -> dict[str, Entry]:
    """The runs of an index; none of one that is damaged, or of another version."""
    found: dict[str, Entry] = {}
    bases: list[Base] = []
    head, _, content = written.partition(b"\n")
    if head + b"\n" != _head(content):
        return {}
    parse = json.loads if is_plain(content) else _parsed
    with contextlib.suppress(*DAMAGE, RecursionError):  # made up: what came before that can be used as well as none
        for line in content.decode("ascii").split("\n"):
            parts = line.split("\t")
            if len(parts) == _PARTS_OF_A_RUN:
                path, entry = _entry(parse(parts[0]), parts, bases, runs_dir)
                found[path] = entry
            else:
                bases.append(Base(line))
    return found


def _parsed(text: str) -> Any:
    return parse_json(text.encode())


def _entry(told: Any, parts: list[str], bases: list[Base], runs_dir: str) -> tuple[str, Entry]:
    """A run by its path. Raises an error of DAMAGE for what is none."""
    name, run_id, number, stats, *values = told
    if not _is_file_name(name) or not _is_file_name(run_id):
        raise ValueError("no name of a folder")
    events, metrics, folder, lease, checkpoints = map(_stat, stats)
    fields = {field: decode(value) for (field, decode), value in zip(_DECODERS.items(), values, strict=True)}
    spec = SpecFields(bases[_whole(number)], parts[1])
    path = f"{runs_dir}/{name}/{run_id}"
    summary = RunSummary(run=RunDir(Path(path)), spec=spec, record=parts[2], **fields)
    return path, Entry(summary, (events, metrics, folder, lease, checkpoints))


def _stat(value: Any) -> Stat:
    changed, size, inode = value
    return _whole(changed), _whole(size), _whole(inode)


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _encoded(summary: RunSummary) -> list[Any]:
    values = (getattr(summary, name) for name in _DECODERS)
    return [astuple(value) if isinstance(value, Labels) else value for value in values]


def _labels(value: Any) -> Labels:
    name, former, tags, note, archived = value
    return Labels(_text_or_none(name), _texts(former), _texts(tags), _plain_text(note), _flag(archived))


def _plain_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else sys.intern(_plain_text(value))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_plain_text(each) for each in _list(value))


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError("no list")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("neither true nor false")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_COUNTED:
        raise TypeError("no count")
    return value


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError("no number")
    return float(value)


def _number_or_none(value: Any) -> float | None:
    if value is None:
        return None
    found = _number(value)
    if not abs(found) <= END_OF_TIME:
        raise ValueError("no time")
    return found


def _state(value: Any) -> State:
    return _STATES[_plain_text(value)]


_BY_TYPE: Mapping[str, Callable[[Any], Any]] = {
    "State": _state,
    "str": _plain_text,
    "str | None": _text_or_none,
    "int": _whole,
    "int | None": _whole_or_none,
    "float | None": _number_or_none,
    "bool": _flag,
    "tuple[str, ...]": _texts,
    "tuple[int, ...]": lambda value: tuple(_whole(each) for each in _list(value)),
    "tuple[float, ...]": lambda value: tuple(_number(each) for each in _list(value)),
    "Mapping[str, float]": lambda value: {sys.intern(key): _number(each) for key, each in value.items()},
    "Labels": _labels,
}
_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    field.name: _BY_TYPE[str(field.type)] for field in fields(RunSummary) if field.name not in ("run", "spec", "record")
}
"""Of the fields of a summary, in the order of the index, by the types that they are declared with."""
