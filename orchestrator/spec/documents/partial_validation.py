"""A job of which only part is known, so that one mistake neither hides another nor causes bogus ones."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from orchestrator.errors import Problem
from orchestrator.fields.base import Section
from orchestrator.fields.docstrings import docstrings
from orchestrator.fields.formatting import dotted
from orchestrator.fields.refusals import Unavailable
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.messages.validation import problems_of
from orchestrator.spec.schema.shape import JOB, Shape, fields_of


class PartialSection:
    """A section whose unknown fields raise Unavailable when they are read. The section's properties work on it."""

    def __init__(self, section: type[Section], values: dict[str, Any]) -> None:
        self._section = section
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in self._section.model_fields:
            raise Unavailable(name)
        attribute = getattr(self._section, name)
        assert isinstance(attribute, property), f"rules read fields and properties only, not {name}"
        assert attribute.fget is not None
        return attribute.fget(self)

    def model_copy(self, update: dict[str, Any]) -> PartialSection:
        """The same with other values, as of a whole section."""
        return PartialSection(self._section, {**self._values, **update})


def without_fields(job: JobSections, fields: Mapping[str, Container[str]]) -> JobSections:
    """What is known of a job where these fields are not, by section."""
    known = dict(job)
    for name, unknown in fields.items():
        others = {field: value for field, value in known[name] if field not in unknown}
        known[name] = PartialSection(type(known[name]), others)
    return cast("JobSections", PartialSection(type(job), known))


@dataclass
class Examination:
    """Validates plain data field by field."""

    unavailable: set[str]
    """Dotted paths whose value is not known."""
    incomplete: list[tuple[str | int, ...]]
    """Places below which an absent key may stand in a source that could not be read."""
    problems: list[Problem] = field(default_factory=list)
    root: Shape = JOB
    """Of the whole document, for the places of problems."""

    def examine(self, section: type[Section], data: dict[str, Any], path: tuple[str, ...] = ()) -> PartialSection:
        """The known part of a section; what is wrong with the rest is added to `problems`."""
        values: dict[str, Any] = {}
        for name in section.model_fields:
            place = (*path, name)
            if dotted(place) in self.unavailable:
                continue
            try:
                values[name] = self._field(section, name, data, place)
            except Unavailable:
                continue
        return PartialSection(section, values)

    def _field(self, section: type[Section], name: str, data: dict[str, Any], place: tuple[str, ...]) -> Any:
        shape = fields_of(section)[name]
        if name not in data:
            return self._absent(section, name, place, shape.section)
        value = data[name]
        if shape.section is not None and isinstance(value, dict):
            return self.examine(shape.section, value, place)
        try:
            return _adapter(section, name).validate_python(value)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        self.problems.extend(problems_of(errors, place, self.root))
        if shape.kind == "mapping" and isinstance(value, dict):
            if shape.items is not None and shape.items.section is not None:
                return self._entries(shape.items.section, value, place)
            wrong = {found["loc"][0] for found in errors}
            return {key: entry for key, entry in value.items() if key not in wrong}
        raise Unavailable(name)

    def _entries(self, section: type[Section], entries: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
        """The known parts of sections under free keys, whose problems have been told."""
        silent = Examination(self.unavailable, self.incomplete, root=self.root)
        return {
            key: silent.examine(section, entry, (*place, key))
            for key, entry in entries.items()
            if isinstance(entry, dict)
        }

    def _absent(self, section: type[Section], name: str, place: tuple[str, ...], inner: type[Section] | None) -> Any:
        info = section.model_fields[name]
        if info.is_required():
            if not self._may_be_elsewhere(place):
                description = docstrings(section).get(name) or (inner.__doc__ if inner else None)
                self.problems.append(Problem("is missing", (dotted(place),), description, code="missing_key"))
            raise Unavailable(name)
        default = info.get_default(call_default_factory=True)
        if inner is not None and default is not None:
            return self.examine(inner, {}, place)
        below = dotted(place) + "."
        if self._may_be_elsewhere(place) or any(path.startswith(below) for path in self.unavailable):
            raise Unavailable(name)
        return default

    def _may_be_elsewhere(self, place: tuple[str, ...]) -> bool:
        return any(place[: len(prefix)] == prefix for prefix in self.incomplete)


@cache
def _adapter(section: type[Section], name: str) -> TypeAdapter[Any]:
    info = section.model_fields[name]
    annotation = info.annotation
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return TypeAdapter(annotation)
    described: Any = Annotated[annotation, *info.metadata] if info.metadata else annotation
    return TypeAdapter(described, config=ConfigDict(allow_inf_nan=False))
