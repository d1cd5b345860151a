"""What is written below a field, read from the source when somebody asks for it.

pydantic can read it whenever a model is made, which takes an eighth of `orchestrator validate`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from orchestrator.fields.base import Section


@cache
def docstrings(section: type[Section]) -> Mapping[str, str]:
    """The docstrings of a section's fields, those that it inherits included."""
    found: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if issubclass(owner, Section):
            in_module = _below_fields(owner.__module__)
            assert owner.__qualname__ in in_module, "sections stand at the top of their modules"
            found |= in_module[owner.__qualname__]
    return found


@cache  # inspect finds one class by reading all of its module
def _below_fields(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class of a module, what is below its fields."""
    definitions = ast.parse(inspect.getsource(sys.modules[module])).body
    return {each.name: dict(_in_class(each)) for each in definitions if isinstance(each, ast.ClassDef)}


def _in_class(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def documented_schema(section: type[Section]) -> dict[str, Any]:
    """pydantic's JSON schema of a section as it is written, with the docstrings as descriptions."""
    schema = section.model_json_schema(mode="validation")
    owners = {owner.__name__: owner for owner in _all_below(Section)}
    for name, definition in {section.__name__: schema, **schema.get("$defs", {})}.items():
        if name in owners:
            properties = definition["properties"]
            for field, text in docstrings(owners[name]).items():
                properties[field] = dict(sorted({**properties[field], "description": text}.items()))
    return schema


def _all_below(section: type[Section]) -> Iterator[type[Section]]:
    for child in section.__subclasses__():
        yield child
        yield from _all_below(child)
