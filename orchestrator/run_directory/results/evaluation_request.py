"""What is to be measured of a checkpoint: tasks with their options and files, and the key that such a result has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UserError
from orchestrator.files.file_types import why_unreadable
from orchestrator.files.folder_tree import folder_tree
from orchestrator.run_directory.results.record import key_of

Kind = Literal["wikitext", "text", "lambada", "mnli", "race", "lm-eval"]

# What a task's numbers mean is part of a result's key: a greater number here makes every result a new one.
_MEANING = 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class EvaluationRequest:
    """One task. `where`: the file or folder, or what `lm-eval` knows the task by."""

    kind: Kind
    name: str
    where: str
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Mapping[str, Any]] = ()
    """Path, bytes and SHA-256 of each file, of a folder as a whole; none for `lm-eval`, which knows its own."""

    def key(self, checkpoint: str, tokenizer: str, contents: str = "") -> str:
        """Of the result, given the digests of checkpoint and tokenizer, and of what is not in files."""
        read = [(file["bytes"], file["sha256"]) for file in self.files] or self.where
        return key_of(_MEANING, self.kind, self.options, read, contents, checkpoint, tokenizer)


def dump_asked(tasks: Sequence[EvaluationRequest]) -> str:
    """The tasks as JSON."""
    return json.dumps([asdict(task) for task in tasks])


def load_asked(text: str) -> list[EvaluationRequest]:
    """What `dump_asked` wrote."""
    return [EvaluationRequest(**record) for record in json.loads(text)]


def checkpoint_digest(files: Mapping[str, Any]) -> str:
    """Of the files of a commit marker: sizes and checksums, so that a copy has the same one wherever it lies."""
    return key_of([(name, files[name].bytes, files[name].crc32) for name in sorted(files)])


def read_text(path: Path) -> str:
    """A text that is measured. Raises UserError where there is none in it."""
    try:
        content = path.read_bytes()
        text = content.decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", code="unreadable_file") from error
    except UnicodeDecodeError as error:
        if (what := why_unreadable(path, content)) is not None:
            raise UserError(f"{path}: {what}", code="binary_file") from error
        raise UserError(
            f"{path} is not text in UTF-8: {error.reason} at byte {error.start}", code="not_utf8"
        ) from error
    if not text.strip():
        raise UserError(f"{path} is empty", code="empty_file")
    return text


def file_facts(path: Path) -> dict[str, Any]:
    """Path, bytes and SHA-256 of a file; of a folder over all its files, by their names. Raises UserError."""
    try:
        if not path.is_dir():
            size, digest = _digest(path)
            return {"path": str(path), "bytes": size, "sha256": digest}
        found = [(str(each.relative_to(path)), *_digest(each)) for each in folder_tree(path).files]
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} is not there", code="file_not_found") from error
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be read: {error.strerror}", code="unreadable_file") from error
    return {"path": str(path), "bytes": sum(size for _, size, _ in found), "sha256": key_of(found)}


def _digest(path: Path) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            digest.update(chunk)
    return size, digest.hexdigest()
