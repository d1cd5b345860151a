"""The flags of a command, and the job that grows from them: what the table and its companions read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.fields.flag_values import whole_number
from orchestrator.migration.defaults import default_of, is_about_speed, is_free_text, is_optional
from orchestrator.migration.flags import Flag
from orchestrator.migration.megatron_flags.programs import Family
from orchestrator.migration.report import WRITE_IT, FlagOutcome, Migration, Outcome, Source
from orchestrator.migration.shell.values import known, shown

MEGATRON = "Megatron-LM's default"


def _no_value(flag: Flag) -> str:
    words = " ".join(map(shown, flag.words))
    return f"{words!r} is no value of it" if flag.words else "it has no value"


class GivenFlags:
    """Flags that are given, and what has been made of them so far."""

    def __init__(self, flags: dict[str, Flag], migration: Migration, family: Family) -> None:
        self.flags = flags
        self.family = family
        self.migration = migration
        self.settled: set[str] = set()
        """Names of flags that are accounted for."""

    def has(self, name: str) -> bool:
        """Whether a flag is given."""
        return name in self.flags

    def is_settled(self, name: str) -> bool:
        """Whether a flag is accounted for."""
        return name in self.settled

    def note(self, text: str) -> None:
        """Tell a person what no flag is accounted for by."""
        self.migration.notes.append(text)

    def words(self, name: str) -> list[str] | None:
        """The words of a flag; None where it is not given, or where they are not all known."""
        flag = self.flags.get(name)
        if flag is None:
            return None
        words = [text for word in flag.words if (text := known(word)) is not None]
        return words if len(words) == len(flag.words) else None

    def text(self, name: str) -> str | None:
        """The one word of a flag, if it is known."""
        words = self.words(name)
        return words[0] if words and len(words) == 1 else None

    def number(self, name: str) -> int | None:
        """The one word of a flag as a whole number, if it is one."""
        text = self.text(name)
        return whole_number(text) if text is not None else None

    def get(self, path: str) -> Any:
        """The value of a field as it is so far."""
        return self.migration.values.get(path, default_of(path))

    def carry(self, name: str, path: str, value: Any, comment: str | None = None) -> None:
        """The flag is this value of a field."""
        flag = self.flags[name]
        is_default = value == default_of(path)
        self.settle(name, "default" if is_default else "carried", path, value)
        if is_default:
            self.migration.values.pop(path, None)
        else:
            self.put(path, value, comment or flag.shown)

    def put(self, path: str, value: Any, comment: str, is_default: bool = False) -> None:
        """A value of a field and its source, where it is not the field's default."""
        if value != default_of(path):
            self.migration.values[path] = value
            self.migration.sources[path] = Source(comment, is_default)

    def default(self, path: str, value: Any, comment: str = MEGATRON) -> None:
        """What Megatron-LM does without a flag."""
        self.put(path, value, comment, is_default=True)

    def settle(
        self, name: str, outcome: Outcome, path: str | None = None, value: Any = None, reason: str | None = None
    ) -> None:
        """Account for a flag."""
        self.settled.add(name)
        self.migration.accounts.append(FlagOutcome(outcome, self.flags[name].shown, path, value, reason))

    def no_effect(self, names: str | Sequence[str], reason: str) -> None:
        """Flags that change nothing here; those that are not given are passed over."""
        for name in [names] if isinstance(names, str) else names:
            if self.has(name) and name not in self.settled:
                self.settle(name, "no_effect", reason=reason)

    def overrule(self, name: str, reason: str) -> None:
        """A flag that is accounted for already, and that another one goes over."""
        shown = self.flags[name].shown
        for account in [account for account in self.migration.accounts if account.flag == shown]:
            self.migration.accounts.remove(account)
            if account.path is not None:
                self.migration.drop(account.path)
        self.settle(name, "no_effect", reason=reason)

    def not_supported(self, name: str, reason: str, path: str | None = None) -> None:
        """A flag that asks for what this version does not do."""
        self.settle(name, "not_supported", path, reason=reason)

    def another_training(self, name: str, reason: str) -> None:
        """A flag without which something else is trained, and that no field has."""
        self.settle(name, "changes_training", reason=reason)

    def refuse_value(self, name: str, path: str, reason: str) -> None:
        """A flag with a value that its field cannot have. Without it another thing would be computed, so a person has
        to choose, unless it is about speed alone.
        """
        self.not_supported(name, reason, path)
        if not is_about_speed(path):
            self.require(path, f"{self.flags[name].shown} ({reason})")

    def is_open(self, path: str) -> bool:
        """Whether a person has to write a field, so that what goes with its values may be meant."""
        return self.migration.is_open(path)

    def write_it(self, name: str, path: str, reason: str | None = None) -> None:
        """A flag whose value is not known, or is no value of its field: a person has to write it."""
        flag = self.flags[name]
        unknown = flag.unknown
        why = reason or (unknown.why if unknown is not None else _no_value(flag))
        if unknown is not None and unknown.variable is not None and reason is None:
            why += f": --set-var {unknown.variable}=VALUE"
        if is_optional(path):
            self.settle(name, "not_known", path, reason=f"{why}; it stays at its default")
            return
        self.settle(name, "not_known", path, reason=why)
        self.require(path, f"{flag.shown} ({why})")

    def require(self, path: str, why: str) -> None:
        """A field that a person has to write."""
        self.migration.missing[path] = why
        if not is_free_text(path):
            self.migration.values[path] = WRITE_IT
            self.migration.sources[path] = Source(f"write it: {why}")
