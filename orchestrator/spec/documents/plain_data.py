"""Written values as plain data for pydantic: unknown keys found, text taken as written, nulls left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import Location, Problem
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import dotted
from orchestrator.spec.messages.document import JOB_SPEC, Document
from orchestrator.spec.messages.suggestions import suggest
from orchestrator.spec.schema.shape import Shape, fields_of, sections
from orchestrator.spec.yaml.reader import UNREADABLE, LocatedValue

Path = tuple[str | int, ...]

MAX_SUGGESTIONS = 100
"""Looking for what may have been meant takes a millisecond; a file of thousands of unknown keys is not a spec."""


@dataclass
class PlainData:
    """A tree of written values as plain data."""

    document: Document[Any] = JOB_SPEC
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unavailable: set[str] = field(default_factory=set)
    """Dotted paths whose value is not known: broken, or not written and probably meant by an unknown key."""
    incomplete: list[tuple[str | int, ...]] = field(default_factory=list)
    """Sections that were probably written under another name as well."""
    meant: set[str] = field(default_factory=set)
    """Dotted paths that an unknown key may have meant."""


def to_plain(root: LocatedValue, shape: Shape, document: Document[Any] = JOB_SPEC) -> PlainData:
    """The plain data of all that is written; messages speak of it as of that kind of document."""
    plain = PlainData(document)
    data = _convert(root, shape, (), plain)
    if isinstance(data, dict):
        plain.data = data
    section: type[Section] = document.root
    for path in plain.meant:
        parts = tuple(path.split("."))
        if parts in sections(section):
            plain.incomplete.append(parts)
        elif not _is_written(plain.data, parts):
            plain.unavailable.add(path)
    return plain


def _is_written(data: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def _convert(written: LocatedValue, shape: Shape | None, path: Path, plain: PlainData) -> Any:
    content = written.content
    if isinstance(content, dict):
        if shape is not None and shape.kind == "section" and shape.section is not None:
            return _section(content, fields_of(shape.section), path, plain)
        return _entries(content, shape.items if shape else None, path, plain)
    if isinstance(content, list):
        items = shape.items if shape else None
        return [_convert(item, items, (*path, index), plain) for index, item in enumerate(content)]
    if shape is not None and shape.kind == "text" and content is not None and written.text is not None:
        return written.text
    return content


def _section(content: dict[str, LocatedValue], legal: dict[str, Shape], path: Path, plain: PlainData) -> dict[str, Any]:
    known = {key: value for key, value in content.items() if key in legal}
    for key, value in content.items():
        if key not in legal:
            _unknown(key, value.location, list(legal), path, plain)
    return {
        key: _convert(value, legal[key], (*path, key), plain)
        for key, value in known.items()
        if _has_value(value, (*path, key), plain)
    }


def _entries(content: dict[str, LocatedValue], items: Shape | None, path: Path, plain: PlainData) -> dict[str, Any]:
    return {
        key: _convert(value, items, (*path, key), plain)
        for key, value in content.items()
        if _has_value(value, (*path, key), plain)
    }


def _has_value(value: LocatedValue, path: Path, plain: PlainData) -> bool:
    if value.content is UNREADABLE:
        plain.unavailable.add(dotted(path))
        return False
    return value.content is not None


def _unknown(key: str, place: Location, legal: list[str], path: Path, plain: PlainData) -> None:
    hint = None
    if len(plain.problems) < MAX_SUGGESTIONS:
        hint, meant = suggest(key, tuple(str(part) for part in path), legal, plain.document)
        plain.meant.update(meant)
        if hint is None and legal:
            hint = f"keys here: {', '.join(legal)}"
    where = dotted(path) or f"a {plain.document.noun}"
    message = f"there is no such key in {where}"
    plain.problems.append(Problem(message, (dotted((*path, key)),), hint, place, "unknown_key"))
