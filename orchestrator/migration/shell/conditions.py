"""Whether a condition holds, so far as that can be told without running anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from orchestrator.migration.shell.expansion import fields, pattern, text
from orchestrator.migration.shell.syntax import Test, Word
from orchestrator.migration.shell.values import Value, known
from orchestrator.migration.shell.variables import Variables
from orchestrator.migration.shell.words import plain

Answer = bool | None
"""None: it cannot be told."""

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_BINARY = frozenset((*_NUMBERS, "=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef"))


def negation(answer: Answer) -> Answer:
    """Not; of what cannot be told neither can this."""
    return None if answer is None else not answer


def both(left: Answer, right: Answer) -> Answer:
    """And."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: Answer, right: Answer) -> Answer:
    """Or."""
    return negation(both(negation(left), negation(right)))


def matches(word: str | None, shape: str | None) -> Answer:
    """Whether a word fits a pattern of `fnmatch`; None stands for one that is not known."""
    if shape == "*":
        return True
    return None if word is None or shape is None else fnmatchcase(word, shape)


def double_bracket(test: Test, variables: Variables) -> Answer:
    """`[[ … ]]`: words are not split, and a pattern may stand on the right."""
    variables.in_condition = True
    operators = [token if isinstance(token, str) else plain(token) for token in test.tokens]
    values: list[Value] = [(token,) if isinstance(token, str) else text(token, variables) for token in test.tokens]
    patterns = [token if isinstance(token, str) else pattern(token, variables) for token in test.tokens]
    variables.in_condition = False
    return _Condition(operators, values, patterns).answer()


def bracket(words: list[Value]) -> Answer:
    """`[ … ]` and `test …`, without their own words."""
    return _Condition([known(word) for word in words], words).answer()


def bracket_words(word_list: Sequence[Word], variables: Variables) -> list[Value]:
    """The words of `[ … ]`, in which variables that nothing sets are empty."""
    variables.in_condition = True
    words = [field for word in word_list for field in fields(word, variables)]
    variables.in_condition = False
    return words


class _Condition:
    def __init__(
        self, operators: list[str | None], values: list[Value], patterns: list[str | None] | None = None
    ) -> None:
        self._operators = operators
        self._values = values
        self._at = 0
        self._patterns = patterns

    def answer(self) -> Answer:
        if not self._values:
            return False
        answer = self._either()
        return answer if self._at == len(self._values) else None

    def _next(self, *operators: str) -> bool:
        if self._at < len(self._operators) and self._operators[self._at] in operators:
            self._at += 1
            return True
        return False

    def _either(self) -> Answer:
        answer = self._both()
        while self._next("||", "-o"):
            answer = either(answer, self._both())
        return answer

    def _both(self) -> Answer:
        answer = self._negated()
        while self._next("&&", "-a"):
            answer = both(answer, self._negated())
        return answer

    def _negated(self) -> Answer:
        if len(self._values) - self._at > 1 and self._next("!"):
            return negation(self._negated())
        if len(self._values) - self._at > 2 and self._operators[self._at] == "(" and not self._is_binary():
            self._at += 1
            answer = self._either()
            return answer if self._next(")") else None
        return self._primary()

    def _is_binary(self) -> bool:
        return self._at + 2 < len(self._values) and self._operators[self._at + 1] in _BINARY

    def _primary(self) -> Answer:
        if self._at >= len(self._values):
            return None
        if self._is_binary():
            left, right = known(self._values[self._at]), known(self._values[self._at + 2])
            compared = self._operators[self._at + 1] or ""
            self._at += 3
            if compared in ("=", "==", "!=") and self._patterns is not None:
                same = matches(left, self._patterns[self._at - 1])
                return same if compared != "!=" else negation(same)
            return self._compared(left, compared, right)
        operator = self._operators[self._at]
        if operator is not None and len(operator) == 2 and operator[0] == "-" and self._at + 1 < len(self._values):
            operand = self._values[self._at + 1]
            self._at += 2
            return _is_filled(operand, operator)
        self._at += 1
        return _is_filled(self._values[self._at - 1], "-n")

    @staticmethod
    def _compared(one: str | None, operator: str, other: str | None) -> Answer:
        if one is None or other is None:
            return None
        if operator in _NUMBERS:
            try:
                return _NUMBERS[operator](int(one or "0"), int(other or "0"))
            except ValueError:
                return None
        orders = {"=": one == other, "==": one == other, "!=": one != other, "<": one < other, ">": one > other}
        return orders.get(operator)


def _is_filled(operand: Value, operator: str) -> Answer:
    if operator not in ("-n", "-z"):
        return None
    content = known(operand)
    if content is None and not any(isinstance(part, str) and part for part in operand):
        return None
    return (content != "") is (operator == "-n")
