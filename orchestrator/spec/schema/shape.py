"""The shape of the schema: which keys are legal where, read from the models' annotations."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import Metadata
from orchestrator.spec.job_sections import JobSections

Kind = Literal["section", "mapping", "list", "text", "scalar"]
M = TypeVar("M", bound=Metadata)


class Shape(NamedTuple):
    """What may stand at a place: a section, a mapping of free keys, a list, text, or another scalar."""

    kind: Kind
    section: type[Section] | None = None
    items: Shape | None = None
    """Of the values of a mapping or the items of a list."""


JOB = Shape("section", JobSections)


@cache
def fields_of(section: type[Section]) -> dict[str, Shape]:
    """The legal keys of a section and the shape of each."""
    return {name: _shape(info.annotation) for name, info in section.model_fields.items()}


def shape_at(path: tuple[str | int, ...], root: Shape = JOB) -> Shape | None:
    """The shape of a place; None where nothing is legal."""
    shape: Shape | None = root
    for key in path:
        if shape is None:
            return None
        shape = fields_of(shape.section).get(str(key)) if shape.section else shape.items
    return shape


@cache
def sections(root: type[Section] = JobSections) -> dict[tuple[str, ...], type[Section]]:
    """Every section that has a path of its own (not those in lists), outermost first."""
    found: dict[tuple[str, ...], type[Section]] = {}
    waiting: list[tuple[tuple[str, ...], type[Section]]] = [((), root)]
    while waiting:
        path, section = waiting.pop(0)
        found[path] = section
        for name, shape in fields_of(section).items():
            if shape.kind == "section" and shape.section:
                waiting.append(((*path, name), shape.section))
    return found


def field_at(path: str, root: type[Section] = JobSections) -> FieldInfo:
    """The declaration of the field or section at a dotted path."""
    *section, name = path.split(".")
    return sections(root)[tuple(section)].model_fields[name]


def declared(kind: type[M], root: type[Section] = JobSections) -> Iterator[tuple[str, M]]:
    """(dotted path, metadata) of all fields and sections whose declarations have some of a kind, outermost first."""
    for path, section in sections(root).items():
        for name, info in section.model_fields.items():
            yield from ((".".join((*path, name)), each) for each in info.metadata if isinstance(each, kind))


def declared_around(path: str, kind: type[M], root: type[Section] = JobSections) -> M | None:
    """What the declaration of a field has of a kind, or else that of the nearest section around it."""
    while path:
        for each in field_at(path, root).metadata:
            if isinstance(each, kind):
                return each
        path = path.rpartition(".")[0]
    return None


def leaf_paths(root: type[Section] = JobSections) -> Iterator[str]:
    """The dotted path of every field of the schema that is not a section."""
    for path, section in sections(root).items():
        for name, shape in fields_of(section).items():
            if shape.kind != "section":
                yield ".".join((*path, name))


def meant_by_name(paths: Sequence[str]) -> list[str]:
    """Of fields of one name those that may be meant by it alone: a decoder's, not that of what encodes its images."""
    name = paths[0].rpartition(".")[2]
    of_images = f"model.vision.{name}"
    return [path for path in paths if path != of_images or f"model.{name}" not in paths]


def types_of(annotation: Any) -> list[Any]:
    """The types that an annotation is a choice of, but None, without what constrains them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return types_of(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [option for argument in get_args(annotation) for option in types_of(argument)]
    return [] if annotation is type(None) else [annotation]


def _shape(annotation: Any) -> Shape:
    shapes = [_single(option) for option in types_of(annotation)]
    for shape in shapes:
        if shape.kind in ("section", "mapping", "list"):
            return shape
    if all(shape.kind == "text" for shape in shapes):
        return Shape("text")
    return Shape("scalar")


def _single(annotation: Any) -> Shape:
    origin = get_origin(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Shape("section", annotation)
    if origin is dict:
        return Shape("mapping", items=_shape(get_args(annotation)[1]))
    if origin in (list, tuple):
        return Shape("list", items=_shape(get_args(annotation)[0]))
    if annotation is str or (origin is Literal and all(isinstance(value, str) for value in get_args(annotation))):
        return Shape("text")
    return Shape("scalar")
