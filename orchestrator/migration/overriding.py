"""Values that a person gives beside what is migrated."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import SpecError
from orchestrator.migration.report import Migration, Source
from orchestrator.spec.composing import apply_override, compose_text
from orchestrator.spec.written import Written


def override(migration: Migration, assignment: str) -> None:
    """Put `KEY=VALUE` over what is migrated; the schema checks the value. Raises SpecError for what is none."""
    composition = compose_text("{}", "--set")
    apply_override(composition, assignment)
    if composition.problems:
        raise SpecError(problems=composition.problems)
    path = assignment.partition("=")[0].strip()
    value: Any = composition.root
    for key in path.split("."):
        value = value.content[key.strip()]
    for held in (migration.values, migration.missing, migration.sources):
        for other in [other for other in held if other == path or other.startswith(f"{path}.")]:
            del held[other]
    plain = _plain(value)
    if plain is not None:
        migration.values[path] = plain
        migration.sources[path] = Source("--set")


def _plain(written: Written) -> Any:
    content = written.content
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_plain(item) for item in content]
    return content
