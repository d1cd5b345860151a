"""A migrated job as commented YAML: every value with what it comes from, at the top what needs a person's eye."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.fields.base import Section
from orchestrator.fields.formatting import as_yaml, shorten
from orchestrator.fields.metadata import REQUIRED
from orchestrator.migration.defaults import default_of
from orchestrator.migration.report import HEADINGS, LOUD, Migration
from orchestrator.quantities import spec_duration
from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.shape import fields_of

_LONGEST_COMMENT = 100
_DURATIONS = ("launch.time", "runtime.hang_timeout")


def job_text(migration: Migration) -> str:
    """The YAML of a migrated job. It holds WRITE_IT, or a comment, where a person has to write a value."""
    return "\n".join([*_head(migration), "", *_section(migration, JobSpec, "", 0)]) + "\n"


def _head(migration: Migration) -> Iterator[str]:
    yield f"# Migrated from {_line(migration.source)}. The comment next to each value shows its origin."
    for outcome in LOUD:
        accounts = migration.of(outcome)
        if accounts:
            yield "#"
            yield f"# {HEADINGS[outcome]}"
            for account in accounts:
                yield f"#   {_line(account.flag)}" + (f": {_line(account.reason)}" if account.reason else "")
    if migration.notes:
        yield "#"
        yield "# Assumed"
        for note in migration.notes:
            yield f"#   {_line(note)}"


def _section(migration: Migration, section: type[Section], prefix: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, shape in fields_of(section).items():
        path = f"{prefix}{name}"
        if shape.kind == "section" and shape.section is not None and path not in migration.values:
            lines = list(_section(migration, shape.section, f"{path}.", depth + 1))
            if not lines and depth == 0 and default_of(path) is REQUIRED:
                yield from ["", f"{name}: {{}}"]
            elif lines:
                yield from [""] if depth == 0 else []
                yield f"{indent}{name}:"
                yield from lines
        elif path in migration.values:
            value = migration.values[path]
            if path in _DURATIONS and isinstance(value, int):
                value = spec_duration(value)
            yield from _entry(name, value, _comment(migration, path), indent)
        elif path in migration.missing:
            yield f"{indent}# {name}: write it: {_line(migration.missing[path])}"


def _entry(name: str, value: Any, comment: str, indent: str) -> Iterator[str]:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        yield f"{indent}{name}:{comment}"
        for item in value:
            first, *rest = (f"{key}: {as_yaml(content)}" for key, content in item.items())
            yield f"{indent}  - {first}"
            yield from (f"{indent}    {line}" for line in rest)
    elif isinstance(value, dict) and value:
        yield f"{indent}{name}:{comment}"
        yield from (f"{indent}  {as_yaml(key)}: {as_yaml(content)}" for key, content in value.items())
    else:
        yield f"{indent}{name}: {as_yaml(value)}{comment}"


def _comment(migration: Migration, path: str) -> str:
    source = migration.sources.get(path)
    return f"  # {_line(source.comment, _LONGEST_COMMENT)}" if source is not None else ""


def _line(text: str, limit: int = 300) -> str:
    """The text as it can stand in a comment."""
    return shorten(text, limit)
