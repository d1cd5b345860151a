"""In what terms a block says which flags of Megatron-LM are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from orchestrator.errors import UserError

Effect = Literal["none", "aside", "training"]
"""What becomes of a training without a flag: nothing; its speed, its memory, its logs or what it saves; another one."""
NOT_MEASURED = "it is not measured in this version; the training is the same"
INFERENCE = "it is for inference"


class GivenFlags(Protocol):
    """The flags of a command, and the job that grows from them (migration/megatron_flags/given_flags.py)."""

    def has(self, name: str) -> bool: ...
    def words(self, name: str) -> list[str] | None: ...
    def text(self, name: str) -> str | None: ...
    def number(self, name: str) -> int | None: ...
    def is_settled(self, name: str) -> bool: ...
    def get(self, path: str) -> Any: ...
    def carry(self, name: str, path: str, value: Any) -> None: ...
    def put(self, path: str, value: Any, comment: str) -> None: ...
    def default(self, path: str, value: Any) -> None: ...
    def settle(
        self, name: str, outcome: Literal["carried", "default"], path: str | None = None, value: Any = None
    ) -> None: ...
    def no_effect(self, names: str | Sequence[str], reason: str) -> None: ...
    def overrule(self, name: str, reason: str) -> None: ...
    def another_training(self, name: str, reason: str) -> None: ...
    def refuse_value(self, name: str, path: str, reason: str) -> None: ...
    def write_it(self, name: str, path: str, reason: str | None = None) -> None: ...
    def note(self, text: str) -> None: ...


class FlagWriter(Protocol):
    """The flags that are written for a job (migration/megatron_flags/flag_writer.py)."""

    @property
    def job(self) -> Any: ...
    @property
    def may_have_engine(self) -> bool: ...
    def value(self, path: str) -> Any: ...
    def default(self, path: str) -> Any: ...
    def add(self, group: str, flag: str, *words: object) -> None: ...
    def take_back(self, flag: str) -> None: ...
    def unsaid_value(self, path: str, reason: str) -> None: ...
    def say_otherwise(self, path: str, reason: str) -> None: ...


class FlagGroup(NamedTuple):
    """Flags that mean something together, and the fields that they are."""

    flags: dict[str, int | None]
    """Each with how many words it takes; None for any number."""
    read: Callable[[Any], None]
    """From GivenFlags."""
    write: Callable[[Any], None]
    """To a FlagWriter."""
    paths: tuple[str, ...]


class FlagsWithoutField(NamedTuple):
    """Flags that no field has."""

    names: str
    """`name=` takes a value, `name=*` any number of them, `name` none."""
    reason: str
    effect: Effect
    path: str | None = None
    """The field that a person has to write then, where one corresponds."""
    harmless: tuple[str, ...] = ()
    """Values that ask for nothing."""


class FlagPattern(NamedTuple):
    """The same of all flags whose whole names a regular expression matches, also of releases that come."""

    pattern: str
    reason: str
    effect: Effect


class IdleFlags(NamedTuple):
    """Flags of another training that change nothing where a field has certain values, and why."""

    pattern: str
    """Of their names."""
    path: str
    is_idle: Callable[[Any], bool]
    """By the value of that field."""
    reason: str


class StoredKey(NamedTuple):
    """A part of the keys of weights, and what Megatron-LM's checkpoints have in its place."""

    ours: str
    theirs: str
    """With Transformer Engine's layers."""
    local: str
    """With megatron-core's own (--transformer-impl local)."""


class StoredRows(NamedTuple):
    """A weight whose rows lie group by group here, each with some of every part, and there part by part, each under the
    weight's key and its own name.
    """

    weight: str
    """What its keys end with."""
    names: tuple[str, ...]
    rows: Callable[[Any], tuple[int, ...]]
    """Of each part, in all groups, by the model."""
    groups: Callable[[Any], int]


class CheckpointArguments(NamedTuple):
    """What Megatron-LM's parser makes of flags, as its checkpoints carry it, where these hold models with a block."""

    asked: str
    """The argument without which the others mean nothing."""
    has: str
    """The property of `model` that says the same."""
    fields: tuple[str, ...]
    """Arguments that are fields of `model` under the same name."""
    to_fields: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda arguments: {}
    """Further fields of `model` that arguments say; None for one that these models have not."""
    keys: tuple[StoredKey, ...] = ()
    """Of weights with other names there."""
    has_local_layers: bool = True
    """Whether megatron-core's own layers have such a block (--transformer-impl local)."""
    rows: tuple[StoredRows, ...] = ()
    """Of weights that are stored in parts there."""
    zero_centred: str | None = None
    """What keys of norms end with that multiply by their weight here, and by 1 + weight there where the model's other
    norms do (apply_layernorm_1p).
    """
    states: Mapping[str, str] = MappingProxyType({})
    """Layers that keep a state there and none here -> a layer with such a state, by parts of their keys."""


@dataclass(frozen=True)
class BlockFlags:
    """The flags of a block that are not one field each with its values (`MegatronFlag` in fields.py)."""

    translated: tuple[FlagGroup, ...] = ()
    old_names: Mapping[str, str] = field(default_factory=dict)
    """What other releases and forks call some of them, with the same values."""
    without_field: tuple[FlagsWithoutField, ...] = ()
    patterns: tuple[FlagPattern, ...] = ()
    idle: tuple[IdleFlags, ...] = ()
    arguments: CheckpointArguments | None = None
    """Of checkpoints that are imported and exported, beside those of every model."""
    not_imported: Mapping[str, str] = field(default_factory=dict)
    """Arguments of checkpoints that, when they are set, make a network which is not imported -> what it has."""
    imported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of these with which it is imported."""
    network: Callable[[Any], dict[str, Any]] = lambda model: {}
    """Fields of a model that decide its network and may be written in several ways, each in one of these; None for what
    the network does not depend on."""
    require_exportable: Callable[[Any], None] | None = None
    """Raises UserError for a job whose network no checkpoint for Megatron-LM holds."""


def number_of(arguments: Mapping[str, Any], name: str, default: float) -> float:
    """What an argument of a checkpoint says. Raises UserError when it is no finite number."""
    value = arguments.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise UserError(
            f"the checkpoint's argument {name} is {str(value)[:40]!r}, and a number is expected: it was changed or "
            "damaged; import another iteration (--iteration)",
            code="argument_not_a_number",
        )
    return float(value)


def all_but(begin: str, flags: Iterable[str]) -> str:
    """A regular expression for flags that begin so, but for those that are translated."""
    known = "|".join(flag.removeprefix(begin) for flag in flags if flag.startswith(begin))
    return f"{begin}(?!({known})$).*"
