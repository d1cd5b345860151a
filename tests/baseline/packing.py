"""Run directories as text that git keeps: what is text line by line, to be read, and what is not (checkpoints, tracker
files) as one compressed archive in base64. The repository has no binary files; and a stored checkpoint has to be the
very bytes that an earlier version wrote, which no value written out as JSON would be.

What names the machine is replaced: <FOLDER> is the folder that `runs` and the data lie in, <CODE> this repository,
<PYTHON> that of the training, <BASE> where Python itself is installed, and the host is called `host`.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import socket
import sys
import tarfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "runs"
CODE = Path(__file__).parents[2]
_OLD = 1.6e9
"""When all files were last written: what a run holds is then long given up."""
_HOST = re.compile(rf'("host": ?)"{re.escape(socket.gethostname())}"')
_BOOT = re.compile(r'("boot": ?)"[^"]*"')
_LEFT_OUT = ("code.diff", ".lock", ".pkl")


def pack(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The files below `names` of a folder."""
    texts: dict[str, list[str]] = {}
    archived: dict[str, bytes] = {}
    for path in _files(folder, names):
        content, name = path.read_bytes(), path.relative_to(folder).as_posix()
        if name.endswith(_LEFT_OUT):
            continue
        # A checkpoint's marker has the size and the checksum of each of its files.
        if "checkpoints/iter_" in name or not _is_text(content):
            archived[name] = content
        else:
            texts[name] = _without_machine(content.decode(), folder).split("\n")
    return {"texts": texts, "archive": textwrap.wrap(base64.b64encode(_archive(archived)).decode(), 110)}


def unpack(packed: Mapping[str, Any], folder: Path) -> None:
    """The files again, in any folder."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(packed["archive"]))), mode="r:xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # it came with Python 3.11.4
        archive.extractall(folder)
    for name, lines in packed["texts"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join(lines)
        for place, word in _places(folder):
            text = text.replace(word, place)
        path.write_text(text)
        os.utime(path, (_OLD, _OLD))


def kept(name: str) -> dict[str, Any]:
    """What is kept of a run."""
    found: dict[str, Any] = json.loads((RUNS / f"{name}.json").read_text())
    return found


def _files(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        place = folder / name
        yield from sorted(path for path in ([place] if place.is_file() else place.rglob("*")) if path.is_file())


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _without_machine(text: str, folder: Path) -> str:
    for place, word in _places(folder):
        text = text.replace(place, word)
    return _BOOT.sub(r'\1"boot"', _HOST.sub(r'\1"host"', text))


def _places(folder: Path) -> list[tuple[str, str]]:
    """What stands for each place, the one inside another first."""
    inside = [(str(folder), "<FOLDER>"), (sys.executable, "<PYTHON>"), (str(CODE), "<CODE>")]
    return [*inside, (sys.base_prefix, "<BASE>")]


def _archive(contents: Mapping[str, bytes]) -> bytes:
    """Of the same files always the same bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz", preset=9) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), int(_OLD)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()
