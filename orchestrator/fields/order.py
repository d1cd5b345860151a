"""The order of fields. Pydantic lists inherited ones before a section's own."""

from __future__ import annotations

from typing import TypeVar

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import ListedAfter

S = TypeVar("S", bound=Section)


def in_listed_order(section: type[S]) -> type[S]:
    """Build a section, whose `defer_build` is set, with inherited fields where `ListedAfter` says."""
    fields = section.model_fields
    numbers = {name: number for number, name in enumerate(fields)}
    anchors: dict[str, str | None] = {}
    """Of inherited fields."""
    for base in section.__bases__:
        anchor = None
        for name, info in getattr(base, "model_fields", {}).items():
            anchor = next((each.field for each in info.metadata if isinstance(each, ListedAfter)), anchor)
            anchors[name] = anchor

    def place(name: str) -> tuple[int, ...]:
        if name not in anchors:
            return (numbers[name],)
        anchor = anchors[name]
        return (*(place(anchor) if anchor else (len(fields),)), numbers[name])

    ordered = {name: fields[name] for name in sorted(fields, key=place)}
    fields.clear()
    fields.update(ordered)
    section.model_rebuild()
    return section
