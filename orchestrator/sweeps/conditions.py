"""Conditions on cells: `tp * pp <= 8 and lr < 1e-3`.

A small part of Python's expressions, read as a syntax tree and evaluated step by step: names, numbers, text, lists of
them, arithmetic, comparisons, `and`, `or`, `not`, `in`. Nothing is called, indexed or imported, and numbers stay small,
so that no condition can do harm or take long.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.fields.formatting import shorten, show

MAX_LENGTH = 1000
MAX_DEPTH = 40
_MAX_BITS = 1024
_WORDS = {"true": True, "false": False, "null": None}

Lookup = Callable[[str], Any]
"""The value of a name; raises ConditionError for one that has none."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_MEMBERSHIP = (ast.In, ast.NotIn)


class ConditionError(Exception):
    """A condition cannot be read, or not evaluated for some values. Never leaves the sweeps room."""


@dataclass(frozen=True)
class Condition:
    """A condition that was read. `names`: what it refers to, dotted where it was written so, in order."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr

    def holds(self, lookup: Lookup) -> bool:
        """Whether it is true of these values. Raises ConditionError when it has no answer."""
        try:
            value = _evaluate(self._tree, lookup)
        except (ArithmeticError, ValueError) as error:
            raise ConditionError(f"cannot be computed: {error}") from error
        if not isinstance(value, bool):
            raise ConditionError(f"is neither true nor false but {show(value)}")
        return value


def read_condition(text: str) -> Condition:
    """Raises ConditionError when the text is not a condition."""
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"is longer than {MAX_LENGTH} characters")
    line = text.replace("\n", " ").strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what nobody will run
            tree = ast.parse(line, mode="eval").body
    except SyntaxError as error:
        raise ConditionError(f"cannot be read: {error.msg}{_near(line, error.offset)}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConditionError("cannot be read") from error
    names: list[str] = []
    _check(tree, names, 0)
    return Condition(text, tuple(dict.fromkeys(names)), tree)


def _near(line: str, offset: int | None) -> str:
    rest = line[offset - 1 :] if offset else ""
    return f" at {show(shorten(rest, 30))}" if rest else ""


def _check(node: ast.AST, names: list[str], depth: int) -> None:
    """Note the names. Raises ConditionError for everything that is not part of the language."""
    if depth > MAX_DEPTH:
        raise ConditionError("is nested too deeply")
    match node:
        case ast.Name() | ast.Attribute():
            name = _name(node)
            if name not in _WORDS:
                names.append(name)
            return
        case ast.Constant(value=bool() | int() | float() | str() | None):
            if isinstance(node.value, int):
                _small(node.value)
            return
        case ast.BinOp(op=op):
            known: bool = type(op) in _ARITHMETIC
        case ast.UnaryOp(op=op):
            known = isinstance(op, ast.Not | ast.USub | ast.UAdd)
        case ast.Compare(ops=ops):
            known = all(type(op) in _COMPARISONS for op in ops)
        case ast.BoolOp() | ast.List() | ast.Tuple():
            known = True
        case _:
            known = False
    if not known:
        raise ConditionError(
            f"may hold names, numbers, text, lists, arithmetic, comparisons, and, or, not, in; not {_part(node)}"
        )
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, names, depth + 1)


def _part(node: ast.AST) -> str:
    try:
        return shorten(ast.unparse(node), 40)
    except (RecursionError, ValueError):
        return "this"


def _name(node: ast.AST) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ConditionError(f"a name is like tp or batch.micro_batch_size, not {_part(node)}")
    return ".".join([node.id, *reversed(parts)])


def _evaluate(node: ast.expr, lookup: Lookup) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() | ast.Attribute():
            name = _name(node)
            return _WORDS[name] if name in _WORDS else lookup(name)
        case ast.List() | ast.Tuple():
            return [_evaluate(item, lookup) for item in node.elts]
        case ast.BoolOp():
            stop = isinstance(node.op, ast.Or)
            return stop if any(_truth(value, lookup) is stop for value in node.values) else not stop
        case ast.UnaryOp(op=ast.Not()):
            return not _truth(node.operand, lookup)
        case ast.UnaryOp():
            number = _number(node.operand, lookup)
            return -number if isinstance(node.op, ast.USub) else number
        case ast.BinOp():
            return _arithmetic(node, lookup)
        case ast.Compare():
            return _compare(node, lookup)
    raise AssertionError("what is not evaluated was refused")


def _truth(node: ast.expr, lookup: Lookup) -> bool:
    value = _evaluate(node, lookup)
    if not isinstance(value, bool):
        raise ConditionError(f"{_part(node)} is neither true nor false but {show(value)}")
    return value


def _number(node: ast.expr, lookup: Lookup) -> int | float:
    value = _evaluate(node, lookup)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConditionError(f"{_part(node)} is not a number but {show(value)}")
    return _small(value)


def _small(number: int | float) -> int | float:
    if isinstance(number, int) and number.bit_length() > _MAX_BITS:
        raise ConditionError("holds or makes a number that is too large")
    return number


def _arithmetic(node: ast.BinOp, lookup: Lookup) -> int | float:
    left, right = _number(node.left, lookup), _number(node.right, lookup)
    if isinstance(node.op, ast.Pow) and isinstance(left, int) and abs(right) * left.bit_length() > _MAX_BITS:
        raise ConditionError("holds or makes a number that is too large")
    result: Any = _ARITHMETIC[type(node.op)](left, right)
    if isinstance(result, complex):
        raise ConditionError(f"{_part(node)} is not a real number")
    assert isinstance(result, int | float)
    return _small(result)


def _compare(node: ast.Compare, lookup: Lookup) -> bool:
    left_node, left = node.left, _evaluate(node.left, lookup)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(right_node, lookup)
        if isinstance(op, _ORDER) and not _comparable(left, right):
            values = f"{_part(left_node)} = {show(left)}, {_part(right_node)} = {show(right)}"
            raise ConditionError(f"cannot order these: {values}")
        if isinstance(op, _MEMBERSHIP) and not (isinstance(right, list) or (_is_text(left) and _is_text(right))):
            raise ConditionError(f"{_part(right_node)} is not a list but {show(right)}")
        if not _COMPARISONS[type(op)](left, right):
            return False
        left_node, left = right_node, right
    return True


def _comparable(left: Any, right: Any) -> bool:
    numbers = (int, float)
    return (isinstance(left, numbers) and isinstance(right, numbers)) or (_is_text(left) and _is_text(right))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
