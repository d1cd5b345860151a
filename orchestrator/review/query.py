"""The filter of runs, on the dashboard, the command line and in Python: `state:failed loss<3 -user:ann "a name"`.

optimizer.lr > 1e-4 and loss < 3                comparisons: = == != < <= > >=; `run_fields` lists the fields
state:failed  user~ann                          `:` and `~`: the text contains it
state in (failed, lost)   tag not in (old)      one of several
created >= 2026-11-01   age < 2d                a date is a whole day
word  "some words"                              anywhere in the name, id, sweep, cell, user, or why it ended
a b   a and b   a or b   not a   -a   (a or b)  `and` binds more strongly than `or`, and may be left out
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from orchestrator.review.filters.run_fields import (
    Field,
    as_number,
    check_values,
    example_of,
    field_of,
    number_of,
    period_of,
    short,
)
from orchestrator.review.filters.run_fields import QueryError as QueryError
from orchestrator.review.run_summary import RunSummary

_LONGEST = 2000
_MOST_PARTS = 50
_DEEPEST = 20
_NAME = r"[A-Za-z_][\w./-]*+"
_COMPARED = re.compile(rf"({_NAME})\s*+(<=|>=|!=|==|[:=<>~])\s*+")
_LISTED = re.compile(rf"({_NAME})\s++(not\s++)?in\s*+(?=[(\[])", re.IGNORECASE)
_WORD = re.compile(r'(?:"[^"]*"|[^\s"()])++')
_ELEMENT = re.compile(r'(?:"[^"]*"|[^\s",()\[\]])++')
_UNIT = re.compile(r"\s++([A-Za-z]++)(?![^\s()])")
_SPACE = re.compile(r"\s*+")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Holds = Callable[[RunSummary], bool]


@dataclass(frozen=True)
class Query:
    """A filter that was read. `keys`: the fields that it asks about."""

    holds: Holds
    keys: frozenset[str]


def select(runs: Sequence[RunSummary], query: str) -> list[RunSummary]:
    """The runs for which a query holds, in their order; archived ones only where it asks about that. Raises QueryError
    when it makes no sense.
    """
    found = read_query(query, runs)
    asks = "archived" in found.keys
    return [run for run in runs if (asks or not run.labels.archived) and found.holds(run)]


def read_query(query: str, runs: Sequence[RunSummary]) -> Query:
    """What a query means for runs. Raises QueryError when it makes no sense."""
    if len(query) > _LONGEST:
        raise QueryError(f"a filter has at most {_LONGEST} characters")
    if query.count('"') % 2:
        raise QueryError('a quote is not closed: write "some words"', query.rindex('"'))
    parser = _Parser(query, runs)
    holds = parser.read()
    if parser.parts > _MOST_PARTS:
        raise QueryError(f"a filter has at most {_MOST_PARTS} parts, not {parser.parts}")
    return Query(holds, frozenset(parser.keys))


def quoted(text: str) -> str:
    """A text as a value of a query; quotes in it become what stands between words."""
    plain = text.replace('"', " ")
    return f'"{plain}"' if not plain or re.search(r"[\s(),\[\]]", plain) else plain


@dataclass
class _Parser:
    """Reads a query from its begin to its end."""

    text: str
    runs: Sequence[RunSummary]
    place: int = 0
    depth: int = 0
    parts: int = 0
    keys: set[str] = field(default_factory=set)

    def read(self) -> Holds:
        self._skip()
        if self.place == len(self.text):
            return lambda run: True
        holds = self._any()
        if self.place < len(self.text):
            raise self._error("a parenthesis is closed that was not opened")
        return holds

    def _any(self) -> Holds:
        """Some parts with `or` between them."""
        found = [self._all()]
        while self._takes("or"):
            found.append(self._all())
        return found[0] if len(found) == 1 else lambda run: any(holds(run) for holds in found)

    def _all(self) -> Holds:
        """Some parts one after another, or with `and` between them."""
        found = [self._part()]
        while self._takes("and") or not self._ends():
            found.append(self._part())
        return found[0] if len(found) == 1 else lambda run: all(holds(run) for holds in found)

    def _part(self) -> Holds:
        negated = False
        while self._takes("not"):
            negated = not negated
        if self._peek() == "-" and self.text[self.place + 1 : self.place + 2].strip():
            self.place += 1
            negated = not negated
        holds = self._group() if self._peek() == "(" else self._comparison_or_words()
        self._skip()
        return (lambda run: not holds(run)) if negated else holds

    def _group(self) -> Holds:
        opened = self.place
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self._error(f"parentheses are nested more than {_DEEPEST} deep")
        self.place += 1
        self._skip()
        holds = self._any()
        if self._peek() != ")":
            raise QueryError("a parenthesis is not closed", opened)
        self.place += 1
        self.depth -= 1
        return holds

    def _comparison_or_words(self) -> Holds:
        begun = self.place
        self.parts += 1
        try:
            if match := _LISTED.match(self.text, begun):
                self.place = match.end()
                return self._in(match[1], self._list(), negated=match[2] is not None)
            if match := _COMPARED.match(self.text, begun):
                self.place = match.end()
                return self._compare(match[1], "=" if match[2] == "==" else match[2])
        except QueryError as error:
            raise error if error.place is not None else QueryError(str(error), begun) from error
        match = _WORD.match(self.text, begun)
        if match is None or match[0].lower() in ("and", "or", "not"):
            after = f"before {match[0]}" if match else "before )" if self._peek() == ")" else "at the end"
            raise self._error(f"a part is missing {after}; to look for the word itself, put it in quotes")
        self.place = match.end()
        return _anywhere(match[0].replace('"', ""))

    def _compare(self, name: str, sign: str) -> Holds:
        match = _WORD.match(self.text, self.place)
        if match is None:
            raise QueryError(f"{short(name + sign)}: a value is missing, as in {name}{sign}{example_of(name)}")
        self.place = match.end()
        value = match[0].replace('"', "")
        found = self._field(name, [value])
        check_values(found, sign, [value], self.runs)
        return _holds(found, ":" if sign == "~" else sign, value + self._unit(found, value))

    def _unit(self, found: Field, value: str) -> str:
        """The unit that stands after a size or a duration with a space between; it would be a word to look for else."""
        match = _UNIT.match(self.text, self.place)
        if match is None or found.kind not in ("bytes", "duration", "moment"):
            return ""
        with suppress(QueryError):
            (period_of if found.kind == "moment" else number_of)(found, value + match[1])
            self.place = match.end()
            return match[1]
        return ""

    def _in(self, name: str, values: Sequence[str], *, negated: bool) -> Holds:
        found = self._field(name, values)
        check_values(found, "=", values, self.runs)
        each = [_holds(found, "!=" if negated else "=", value) for value in values]
        return lambda run: (all if negated else any)(holds(run) for holds in each)

    def _list(self) -> list[str]:
        """The values in parentheses."""
        closing = ")" if self._peek() == "(" else "]"
        opened = self.place
        found: list[str] = []
        while self._peek() != closing or not found:
            self.place += 1
            self._skip()
            match = _ELEMENT.match(self.text, self.place)
            if match is None:
                raise self._error("a value is missing in a list like (failed, lost)")
            found.append(match[0].replace('"', ""))
            self.place = match.end()
            self._skip()
            if self._peek() not in (",", closing):
                raise QueryError("a list is not closed: write (failed, lost)", opened)
        self.place += 1
        self.parts += len(found) - 1
        return found

    def _field(self, name: str, values: Sequence[str]) -> Field:
        found = field_of(name, self.runs, values)
        self.keys.add(found.key)
        return found

    def _takes(self, word: str) -> bool:
        """Go on behind a word that connects parts, if it is the next."""
        match = _WORD.match(self.text, self.place)
        if match is None or match[0].lower() != word or self._is_compared():
            return False
        self.place = match.end()
        self._skip()
        return True

    def _is_compared(self) -> bool:
        return _COMPARED.match(self.text, self.place) is not None

    def _ends(self) -> bool:
        """Whether what follows is no further part."""
        if self._peek() in ("", ")"):
            return True
        match = _WORD.match(self.text, self.place)
        return match is not None and match[0].lower() == "or" and not self._is_compared()

    def _peek(self) -> str:
        return self.text[self.place : self.place + 1]

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.place)
        self.place = match.end() if match else self.place

    def _error(self, message: str) -> QueryError:
        return QueryError(message, self.place)


def _anywhere(words: str) -> Holds:
    wanted = words.casefold()

    def holds(run: RunSummary) -> bool:
        own = (run.key, run.description, run.message, run.sweep, run.cell, run.user, run.job_id, run.labels.note)
        texts = (*own, *run.names, *run.tags)
        return any(wanted in text.casefold() for text in texts if text)

    return holds


def _holds(found: Field, sign: str, value: str) -> Holds:
    """Whether a field compares so with what a person wrote. Raises QueryError."""
    if found.kind in ("text", "texts"):
        return _of_text(found, sign, value)
    if found.kind == "moment":
        return _of_time(found, sign, value)
    if found.kind == "spec":
        return _of_the_spec(found, sign, value)
    return _of_number(found, sign, number_of(found, value))


def _of_text(found: Field, sign: str, value: str) -> Holds:
    if sign in _ORDERS:
        raise QueryError(f"{found.name} is text: write {found.name}:{short(value) or 'word'}")
    wanted = value.casefold()

    def texts(run: RunSummary) -> Sequence[str]:
        text = found.value(run)
        return [each.casefold() for each in text] if isinstance(text, tuple) else [str(text or "").casefold()]

    if sign == ":":
        return lambda run: any(wanted in text for text in texts(run))
    if sign == "=":
        return lambda run: wanted in texts(run)
    return lambda run: wanted not in texts(run)


def _of_number(found: Field, sign: str, wanted: float) -> Holds:
    """What was not measured is neither less nor greater, nor equal."""

    def holds(run: RunSummary) -> bool:
        number = found.value(run)
        return isinstance(number, int | float) and _compare(number, sign, wanted)

    return holds


def _of_time(found: Field, sign: str, value: str) -> Holds:
    begin, end = period_of(found, value)

    def holds(run: RunSummary) -> bool:
        moment = found.value(run)
        if not isinstance(moment, int | float) or math.isnan(moment):
            return False
        if sign in ("<", ">="):
            return (moment < begin) == (sign == "<")
        if sign in ("<=", ">"):
            return (moment < end or moment == begin) == (sign == "<=")
        return (begin <= moment < end or moment == begin) == (sign != "!=")

    return holds


def _of_the_spec(found: Field, sign: str, value: str) -> Holds:
    if sign in _ORDERS:
        wanted = number_of(found, value)
        return lambda run: (number := _number_in_spec(found, run)) is not None and _compare(number, sign, wanted)
    words = value.casefold()
    try:
        as_a_number = number_of(found, value)
    except QueryError:
        as_a_number = None

    def holds(run: RunSummary) -> bool:
        text = found.value(run)
        if not isinstance(text, str):
            return sign == "!="
        number = as_number(text)
        if as_a_number is not None and number is not None:
            return _compare(number, sign, as_a_number)
        same = text.casefold() == words
        return words in text.casefold() if sign == ":" else same if sign == "=" else not same

    return holds


def _number_in_spec(found: Field, run: RunSummary) -> float | None:
    text = found.value(run)
    return as_number(text) if isinstance(text, str) else None


def _compare(found: float, sign: str, wanted: float) -> bool:
    if sign in _ORDERS:
        return _ORDERS[sign](found, wanted)
    same = math.isclose(found, wanted, rel_tol=1e-9) or (math.isnan(found) and math.isnan(wanted))
    return not same if sign == "!=" else same
