"""What ties a test to how code is written and not to what it does, counted in its source: attributes that it replaces,
moments of the product that it names, and private names that it looks at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_SETTERS = {"setattr", "delattr"}
_MOMENTS = {"before", "after", "fail_at"}
"""Of refusals.py."""
_LOOKS = re.compile(
    r"""(?<!\bself)(?<!\bcls)\._[a-zA-Z]|["']_[a-zA-Z]|orchestrator[\w.]*\._"""
    r"""|^[ ]*from[ ]orchestrator\S*[ ]import[ ](?:[^(\n]*\b_|\([^)]*\b_)""",
    re.MULTILINE,
)
"""A program without any of these looks at nothing private of others: attributes, strings, and what it imports."""
_OF_TUPLES = {"_replace", "_asdict", "_fields"}
"""Public in spite of their names: of Python's named tuples."""


def replacements(source: str) -> list[int]:
    """The lines of calls that put something else in place of an attribute, or take it away."""
    if not any(setter in source for setter in _SETTERS):
        return []
    return [call.lineno for call in _calls(source) if _name(call.func) in _SETTERS]


def moments(source: str) -> list[int]:
    """The lines of calls that have something happen where the product comes to one of its functions."""
    if "orchestrator." not in source or not any(f"{moment}(" in source for moment in _MOMENTS):
        return []
    return [
        call.lineno
        for call in _calls(source)
        if _name(call.func) in _MOMENTS and len(call.args) > 1 and "orchestrator." in ast.unparse(call.args[1])
    ]


def private_looks(source: str) -> list[int]:
    """The lines that name a private thing of the product: imported, an attribute of what was, or in a string that says
    where it stands.
    """
    if "orchestrator" not in source or not _LOOKS.search(source):
        return []
    tree = ast.parse(source)
    imported = {
        each.asname or each.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for each in node.names
        if (node.module or "" if isinstance(node, ast.ImportFrom) else each.name).partition(".")[0] == "orchestrator"
    }
    return [line for node in ast.walk(tree) for line in _looks(node, imported)]


def _looks(node: ast.AST, imported: set[str]) -> Iterator[int]:
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "orchestrator":
            yield from (node.lineno for each in names if _is_private(each.name))
        case ast.Attribute(given, name) if _is_private(name) and _root(given) in imported:
            yield node.lineno
        case ast.Constant(str(text)) if text.startswith("orchestrator.") and " " not in text:
            yield from (node.lineno for name in text.split(".") if _is_private(name))
        case ast.Call(ast.Attribute(_, "setattr" | "delattr"), [_, ast.Constant(str(name)), *_]) if _is_private(name):
            yield node.lineno
        case ast.Tuple([ast.Constant(str(module)), ast.Constant(str(name))]):
            if module.startswith("orchestrator.") and _is_private(name):
                yield node.lineno


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_TUPLES


def _calls(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def _name(function: ast.expr) -> str | None:
    match function:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case _:
            return None


def _root(node: ast.expr) -> str | None:
    """What an attribute is taken of, in the end: `a` in `a.b(1)[2].c`."""
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return None
    return node.id
