"""The identity of a spec: of a stored one of an older version too, although it may not be valid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import HashedAs, HashedIfChanged
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.schema.shape import declared, field_at


def config_hash(document: Mapping[str, Any], root: type[Section] = JobSections) -> str:
    """SHA-256 of the canonical JSON of a spec, hex. The same spec gives the same hash on every machine, and one that
    says nothing by a newer key the hash that it had before there was that key.
    """
    for path, default in _left_out(root).items():
        document = _without(document, path, default)
    for name, also in declared(HashedAs, root):
        if not also.could_be(document):
            continue
        document = _at_default(document, name.split("."), field_at(name, root).get_default(), also.earlier)
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@cache
def _left_out(root: type[Section]) -> dict[tuple[str, ...], Any]:
    """The paths of newer keys, each with the value that means the same as not having it. Inner ones come first, and a
    section around them is without them.
    """
    found: dict[tuple[str, ...], Any] = {}
    for path, _ in sorted(declared(HashedIfChanged, root), key=lambda each: -each[0].count(".")):
        keys = tuple(path.split("."))
        default = field_at(path, root).get_default(call_default_factory=True)
        if isinstance(default, Section):
            default = default.model_dump(mode="json")
            for inner, value in found.items():
                if inner[: len(keys)] == keys:
                    default = _without(default, inner[len(keys) :], value)
        found[keys] = default
    return found


def _without(document: Mapping[str, Any], path: tuple[str, ...], default: Any) -> Mapping[str, Any]:
    """The document without the key at the path, where that is at its default."""
    name, *rest = path
    if name not in document:
        return document
    value = document[name]
    if rest:
        return {**document, name: _without(value, tuple(rest), default)} if isinstance(value, Mapping) else document
    return document if value != default else {key: each for key, each in document.items() if key != name}


def _at_default(document: Mapping[str, Any], path: Sequence[str], default: Any, earlier: Any) -> Mapping[str, Any]:
    """The document with an earlier default at the path, where that is at its default."""
    name, *rest = path
    value = document.get(name)
    if not rest:
        return {**document, name: earlier} if name in document and value == default else document
    if not isinstance(value, Mapping):
        return document
    return {**document, name: _at_default(value, rest, default, earlier)}
