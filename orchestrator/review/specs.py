"""The spec of a run: as written and resolved, each generation of it, and what it changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.errors import UserError
from orchestrator.files.stored_files import open_stored, printable, read_json
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.review.damage import readable
from orchestrator.review.redaction import Redaction
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from orchestrator.tracking.description import flatten

Kind = Literal["safe", "trajectory", "forbidden", "unknown"]

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Difference:
    """A field that differs. `kind` and `reason`: what the change means for a run that goes on (spec.diff)."""

    path: str
    old: str
    new: str
    kind: Kind
    reason: str

    def said(self, discretion: Redaction) -> Difference:
        """The same without secrets."""
        old, new = (discretion.field(self.path, value) for value in (self.old, self.new))
        return replace(self, old=old, new=new, reason=discretion.text(self.reason))


@dataclass(frozen=True)
class Generation:
    """A spec that a run had: the first, or one that a resume gave it. `number` from 1."""

    number: int
    resolved: Path
    written: Path


def generations_of(run: RunDir) -> list[Generation]:
    """The specs of a run, oldest first."""
    found = []
    for number, path in enumerate(run.resolved_generations(), 1):
        written = path.with_name(path.name.replace("resolved", "job").replace(".json", ".yaml"))
        found.append(Generation(number, path, written))
    return found


def fields_of(path: Path) -> dict[str, str]:
    """A resolved spec by dotted keys, each value as text; none of its rules are asked. Raises UserError."""
    try:
        record = read_json(path, path.parent)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}", code="unreadable_stored_spec") from error
    if not isinstance(record, dict):
        raise UserError(f"{path} holds no spec", code="stored_spec_is_empty")
    return dict(flatten(record))


def differences(old: Path, new: Path) -> list[Difference]:
    """Differences between two resolved specs, with what it means where both can be read as specs. Raises UserError."""
    judged, _ = readable(lambda: diff_jobs(load_resolved(old), load_resolved(new)))
    if judged is not None:
        return [Difference(each.path, _text(each.old), _text(each.new), each.kind, each.reason) for each in judged]
    return _plain_differences(fields_of(old), fields_of(new))


def _plain_differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    paths: Iterable[str] = dict.fromkeys([*old, *new])
    reason = "one of the specs cannot be read by this version"
    return [
        Difference(path, old.get(path, ""), new.get(path, ""), "unknown", reason)
        for path in paths
        if old.get(path) != new.get(path)
    ]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def text_of(path: Path) -> str:
    """The first megabyte of a text file of a run directory. Raises OSError."""
    with open_stored(path, path.parent) as file:
        content = file.read(_MOST_BYTES + 1)
    text = printable(content[:_MOST_BYTES].decode(errors="replace"))
    return text if len(content) <= _MOST_BYTES else f"{text}\n… (cut after {_MOST_BYTES:,} bytes)"
