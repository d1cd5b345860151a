"""Where a program compares kinds of models by name, an optional section of a job with None, or a block of a layer with
its class, to decide what a model does. Code outside `orchestrator/models/` asks a trait of `model.family`, a property
of the section, or the block instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from orchestrator.models.blocks import block, protocols, registry
from orchestrator.models.registry import FAMILIES

_KINDS = {"architecture", "family"}
"""What holds a family or its name."""
_NAMES = set(FAMILIES) | {name.upper() for name in FAMILIES}
"""Families, as text and as constants of the registry."""
_OPTIONAL = {"vision", "lora", "num_experts", "moe_shared_expert_intermediate_size", "chat", "task"}
"""Fields of a job that are None where it has no such part; each has a property that says whether it is there."""
_CLASSES = {
    name
    for module in (block, registry, protocols)
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == module.__name__ and value is not block.Block
}
"""Of blocks, and of their parts. Every block is a `Block`, as parts of shell scripts and of reports are."""
_WORDS = re.compile(
    rf"\.({'|'.join(_KINDS | _OPTIONAL)})\b|\b({'|'.join(_CLASSES | {name.upper() for name in FAMILIES})})\b"
    rf"|[\"']({'|'.join(FAMILIES)}|model\.architecture)[\"']"
)
"""A program without any of them compares nothing: a field as an attribute, a class or a family by its name."""
_OTHERS = {"self", "request", "served"}
"""Objects that have fields of these names and are no part of a job."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPARING = (ast.Compare, ast.Match, ast.Subscript, ast.Call, ast.MatchClass, ast.Dict)
_DECIDING = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.BoolOp, ast.UnaryOp, ast.comprehension, ast.Call)
_NOBODY: set[str] = set()


def comparisons(source: str) -> list[tuple[int, str]]:
    """Each by its line."""
    if not _WORDS.search(source):
        return []
    nodes = list(ast.walk(ast.parse(source)))
    found = set(_found(nodes, _NOBODY, _NOBODY))
    if any(_locals(nodes)):
        for scope in (node for node in nodes if isinstance(node, _FUNCTIONS)):
            within = list(ast.walk(scope))
            kinds, optional = _locals(within)
            found |= set(_found(within, kinds, optional)) if kinds or optional else set()
    return sorted(found)


def _found(nodes: Iterable[ast.AST], kinds: set[str], optional: set[str]) -> Iterator[tuple[int, str]]:
    """What compares, where these locals hold kinds and optional sections."""
    for node in nodes:
        if isinstance(node, _COMPARING) and _compares(node, kinds, optional):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, _DECIDING):
            for asked in _truths(node):
                if _is_of(asked, _OPTIONAL, optional):
                    yield asked.lineno, ast.unparse(asked)


def _compares(node: ast.AST, kinds: set[str], optional: set[str]) -> bool:
    match node:
        case ast.Compare():
            sides = [each.value if isinstance(each, ast.NamedExpr) else each for each in (node.left, *node.comparators)]
            has_none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
            if has_none:
                return any(_is_of(side, _OPTIONAL, optional) for side in sides)
            return any(_is_of(side, _KINDS, kinds) or _names_a_family(side) or _names_a_class(side) for side in sides)
        case ast.Match():
            return _is_of(node.subject, _KINDS, kinds)
        case ast.Subscript():
            is_registry = isinstance(node.value, ast.Name) and node.value.id == "FAMILIES"
            return not is_registry and _is_of(node.slice, {"architecture"}, kinds)
        case ast.Call(ast.Attribute(_, "get"), [key, *_]):
            return _is_of(key, {"architecture"}, kinds)
        case ast.Call(ast.Name("isinstance" | "issubclass"), [_, classes]):
            return _names_a_class(classes)
        case ast.MatchClass():
            return _names_a_class(node.cls)
        case ast.Dict():
            return any(each is not None and _names_a_class(each) for each in node.keys)
    return False


def _names_a_class(side: ast.expr) -> bool:
    """`RoutedBlock`, `registry.RoutedBlock`, `(RoutedBlock, AttentionBlock)`, or `RoutedBlock | AttentionBlock`."""
    match side:
        case ast.Name(name) | ast.Attribute(_, name):
            return name in _CLASSES
        case ast.Tuple(elements) | ast.List(elements) | ast.Set(elements):
            return any(map(_names_a_class, elements))
        case ast.BinOp(left, ast.BitOr(), right):
            return _names_a_class(left) or _names_a_class(right)
    return False


def _names_a_family(side: ast.expr) -> bool:
    """`"t5"`, `("gpt", "bert")`, `T5`, or `"model.architecture"` in a call that reads it."""
    if isinstance(side, ast.Call):
        return any(isinstance(each, ast.Constant) and each.value == "model.architecture" for each in side.args)
    elements = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
    return any(
        (isinstance(each, ast.Constant) and each.value in _NAMES) or (isinstance(each, ast.Name) and each.id in _NAMES)
        for each in elements
    )


def _truths(node: ast.AST) -> Iterator[ast.expr]:
    """What a node takes for true or false."""
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            yield node.test
        case ast.BoolOp():
            yield from node.values
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.comprehension():
            yield from node.ifs
        case ast.Call(ast.Name("bool"), [asked]):
            yield asked


def _is_of(node: ast.expr, fields: set[str], names: set[str]) -> bool:
    """Whether it reads one of these fields of a job, or a local that holds one."""
    if isinstance(node, ast.Name):
        return node.id in names
    if not isinstance(node, ast.Attribute) or node.attr not in fields:
        return False
    owner = node.value
    return (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) not in _OTHERS


def _locals(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Of a function's nodes, the locals that hold a kind, and those that hold an optional section."""
    kinds: set[str] = set()
    optional: set[str] = set()
    for node in nodes:
        for target, value in _assignments(node):
            if _is_of(value, {"architecture"}, _NOBODY):
                kinds.add(target)
            elif _is_of(value, _OPTIONAL, _NOBODY):
                optional.add(target)
    return kinds, optional


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if not isinstance(node, ast.Assign | ast.NamedExpr):
        return
    match node:
        case ast.Assign([ast.Name(name)], value) | ast.NamedExpr(ast.Name(name), value):
            yield name, value
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            yield from (
                (target.id, value)
                for target, value in zip(targets, values, strict=False)
                if isinstance(target, ast.Name)
            )
