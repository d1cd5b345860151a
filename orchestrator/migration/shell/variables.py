"""The variables of a script at one point of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from orchestrator.errors import UserError
from orchestrator.migration.shell.values import BLANKS, Unknown, Value, known

Array: TypeAlias = tuple[Value, ...]
_LONGEST = 1_000_000
_MOST_WORDS = 10_000


@dataclass
class Variables:
    """Variables at a point of a script. Those of `given` keep their values whatever the script says."""

    given: dict[str, Value] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    """In the order in which the script gave them; of a plain variable, an array of its one word."""
    arrays: set[str] = field(default_factory=set)
    """Which of them are arrays."""
    arguments: list[Value] = field(default_factory=list)
    """`$1`, `$2`, …: those that are known."""
    shifted: int = 0
    """Arguments that the script has passed over."""
    exported: set[str] = field(default_factory=set)
    hidden: list[dict[str, tuple[bool, Array | None]]] = field(default_factory=list)
    """What the own variables of each function that is entered hide: whether it is an array, and its words."""
    read: set[str] = field(default_factory=set)
    """Variables that the script itself has read."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Defaults in the script (`${NAME:-VALUE}`) that were taken, by name."""
    empty: set[str] = field(default_factory=set)
    """Variables that were taken as empty in a condition because nothing sets them."""
    in_condition: bool = False
    output: Callable[[str, Variables], Value | None] | None = field(default=None, compare=False)
    """What a command substitution, as it is written, prints with these variables; None where only running it would
    tell."""

    def copy(self) -> Variables:
        """The same values, to be changed apart; what was read and taken is kept in common."""
        return Variables(
            self.given,
            dict(self.values),
            set(self.arrays),
            list(self.arguments),
            self.shifted,
            set(self.exported),
            [dict(names) for names in self.hidden],
            self.read,
            self.defaults,
            self.empty,
            self.in_condition,
            self.output,
        )

    def set(self, name: str, value: Value) -> None:
        """Give a plain variable its value. Raises UserError for one longer than any that is written."""
        if sum(len(part) for part in value if isinstance(part, str)) > _LONGEST:
            raise UserError(f"the variable {name} grows to more than {_LONGEST:,} characters", code="variable_too_long")
        if name not in self.given:
            self.values[name] = (value,)
            self.arrays.discard(name)

    def set_array(self, name: str, words: Array) -> None:
        """Give an array its words. Raises UserError for more than any that is written."""
        if len(words) > _MOST_WORDS:
            raise UserError(f"the array {name} grows to more than {_MOST_WORDS:,} words", code="array_too_long")
        if name not in self.given:
            self.values[name] = words
            self.arrays.add(name)

    def make_local(self, name: str) -> None:
        """Begin a variable of the function that is entered last, if one is; so far nothing sets it."""
        if self.hidden and name not in self.given:
            self.hidden[-1].setdefault(name, (name in self.arrays, self.values.pop(name, None)))
            self.arrays.discard(name)

    def leave_function(self) -> None:
        """Bring back what the variables of the function that was entered last have hidden."""
        for name, (is_array, value) in self.hidden.pop().items():
            self.values.pop(name, None)
            self.arrays.discard(name)
            if value is not None:
                self.values[name] = value
            if is_array:
                self.arrays.add(name)

    def elements(self, name: str) -> Array | None:
        """The words of an array, or of a plain variable as one of a single word; None where nothing sets it."""
        if name in ("@", "*"):
            return tuple(self.arguments)
        if name.isdigit() and name != "0" and name not in self.given:
            number = int(name)
            return (self.arguments[number - 1],) if number <= len(self.arguments) else None
        self.read.add(name)
        if name in self.given:
            return (self.given[name],)
        return self.values.get(name)

    def value(self, name: str) -> Value | None:
        """The value of a plain variable, or the first word of an array; None where there is none."""
        elements = self.elements(name)
        return elements[0] if elements else None

    def plain_value(self, name: str) -> Value:
        """What a program finds in its environment; that the script has read it is not noted."""
        if name in self.arrays:
            return ()
        return self.given.get(name) or self.values.get(name, ((),))[0]

    @property
    def separators(self) -> str | None:
        """`IFS`, at whose characters words are split; None where they are not known."""
        return known(self.values["IFS"][0]) if self.values.get("IFS") else BLANKS

    def missing(self, name: str, shown: str) -> Value:
        """What stands for a variable without a value: nothing where the script itself leaves it empty."""
        if name == "IFS":
            return (BLANKS,)
        if name in self.arrays:
            return ()
        if self.in_condition:
            self.empty.add(name)
            return ()
        if name.isdigit() and name != "0":
            number = str(int(name) + self.shifted)
            return (Unknown(shown, f"argument {number} of the script", number),)
        if name in ("0", "?", "$", "!", "-"):
            return (Unknown(shown, "known only when it runs"),)
        return (Unknown(shown, f"the script does not set {name}", name),)


def agreed(ends: list[Variables]) -> Variables:
    """Variables as several ways leave them; what they do not agree on is not known."""
    first = ends[0]
    for other in ends[1:]:
        for name in first.values.keys() | other.values.keys():
            if first.values.get(name) != other.values.get(name):
                unknown = Unknown(f"${name}", "depends on an unknown condition", name)
                first.values[name] = ((unknown,),)
                first.arrays.discard(name)
        first.exported |= other.exported
    return first
