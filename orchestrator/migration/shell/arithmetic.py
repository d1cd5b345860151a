"""Whole-number arithmetic as a shell's `$((…))` does it, without assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^~!?:()])")
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_BITS = 64
_MAX_LENGTH = 1000


def _divided(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << (b % _BITS),
    ">>": lambda a, b: a >> (b % _BITS),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divided,
    "%": lambda a, b: a - _divided(a, b) * b,
}


def evaluate(text: str, value_of: Callable[[str], int]) -> int:
    """The value of an expression, as 64 bits hold it; `value_of` gives that of a variable.

    Raises ValueError for what is no such expression, and for a division by zero.
    """
    if len(text) > _MAX_LENGTH:
        raise ValueError("an expression longer than any that is written")
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text[position:].strip()!r} in an expression")
        tokens.append(match.group(1))
        position = match.end()
    if not tokens:
        return 0
    expression = _Expression(tokens, value_of)
    value = expression.choice()
    if expression.tokens:
        raise ValueError(f"{expression.tokens[0]!r} in an expression")
    return value


def _wrapped(value: int) -> int:
    return (value + (1 << (_BITS - 1))) % (1 << _BITS) - (1 << (_BITS - 1))


class _Expression:
    def __init__(self, tokens: list[str], value_of: Callable[[str], int]) -> None:
        self.tokens = tokens
        self._value_of = value_of

    def _take(self, *expected: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in expected else None

    def choice(self) -> int:
        condition = self._level(0)
        if not self._take("?"):
            return condition
        first = self.choice()
        if not self._take(":"):
            raise ValueError("? without : in an expression")
        second = self.choice()
        return first if condition else second

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        value = self._level(level + 1)
        while operator := self._take(*_LEVELS[level]):
            right = self._level(level + 1)
            if operator in "/%" and right == 0:
                raise ValueError("division by zero")
            value = _wrapped(_OPERATIONS[operator](value, right))
        return value

    def _power(self) -> int:
        base = self._unary()
        if not self._take("**"):
            return base
        exponent = self._power()
        if exponent < 0:
            raise ValueError("a negative exponent")
        return _wrapped(pow(base, exponent, 1 << _BITS))

    def _unary(self) -> int:
        if operator := self._take("-", "+", "!", "~"):
            value = self._unary()
            return _wrapped({"-": -value, "+": value, "!": int(not value), "~": ~value}[operator])
        if not self.tokens:
            raise ValueError("an expression that ends too early")
        token = self.tokens.pop(0)
        if token == "(":
            value = self.choice()
            if not self._take(")"):
                raise ValueError("( without ) in an expression")
            return value
        if token[0].isdigit():
            return _wrapped(int(token, 16 if token[:2] in ("0x", "0X") else 8 if token[0] == "0" else 10))
        if token[0].isalpha() or token[0] == "_":
            return self._value_of(token)
        raise ValueError(f"{token!r} in an expression")
