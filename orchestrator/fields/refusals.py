"""What rules refuse fields with: the values that would do instead, and the signal that a field is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import NamedTuple

from orchestrator.errors import Problem
from orchestrator.fields.values import MAX_SIZE


class Unavailable(Exception):  # noqa: N818 - a signal between the rules and what runs them
    """A field that a rule reads is missing or wrong, which has its own problem."""


class SuggestedValues(NamedTuple):
    """Values for a field that may end a refusal; `spec/rules/nearest.py` tries them."""

    path: str
    below: Sequence[float]
    """Less than it has, nearest first."""
    above: Sequence[float]
    note: str = ""
    """Follows what is offered; `{}` in it is the first of that."""


@dataclass(frozen=True)
class Refusal(Problem):
    """A problem that another value of a field may end. Its hint says what else would."""

    numbers: tuple[float, ...] = field(kw_only=True)
    """What the rule compares: with others it is another problem."""
    offers: tuple[SuggestedValues, ...] = ()
    """In the order in which the values go before the hint."""


def divisors(number: int) -> list[int]:
    """All divisors, smallest first; none of a number below 1."""
    small = [value for value in range(1, isqrt(max(number, 0)) + 1) if number % value == 0]
    return [*small, *(number // value for value in reversed(small) if value * value != number)]


def divisors_of(number: int, path: str, present: int) -> SuggestedValues:
    """Divisors of a number for a field that has another value."""
    legal = divisors(number)
    below = tuple(value for value in reversed(legal) if value < present)
    return SuggestedValues(path, below, tuple(value for value in legal if value > present))


def multiples_of(unit: int, path: str, present: int, less: int = 0, note: str = "") -> SuggestedValues:
    """Multiples of a unit, each less so many, for a field that has another value."""
    above = (present + less) // unit * unit + unit - less
    below = -(-(present + less) // unit) * unit - unit - less
    return SuggestedValues(path, range(below, 0, -unit), range(above, MAX_SIZE + 1, unit), note)


def around(path: str, present: int) -> SuggestedValues:
    """Any other value: the rules say which."""
    return multiples_of(1, path, present)


def quotient(number: int, divisor: int) -> str:
    """`20 / 3 = 6.667`."""
    return f"{number} / {divisor} = {ratio(number, divisor)}"


def ratio(number: int, divisor: int) -> str:
    """`6.667` for 20 / 3; `1024.5`, where four digits would look whole."""
    whole, rest = divmod(number, divisor)
    if rest == 0:
        return str(whole)
    texts = (f"{number / divisor:.{digits}g}" for digits in range(4, 18))
    return next((text for text in texts if float(text) % 1), f"{whole} + {rest} / {divisor}")
