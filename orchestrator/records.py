"""Records with frozen fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

EMPTY: Mapping[str, Any] = {}
"""The default of a mapping: no record changes what it is given."""


@dataclass_transform(frozen_default=True)
class Record:
    """Fields as annotated, in their order, with the values given in the class as defaults. Two of one class with equal
    fields are equal.

    For what is made and read, as `dataclass(frozen=True)` is, which writes and compiles methods of its own for each
    class: a quarter of a millisecond for each field, where many modules are imported for one command.
    """

    __names: ClassVar[tuple[str, ...]] = ()
    __defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        kinds: dict[str, str] = vars(cls).get("__annotations__", {})
        own = [name for name, kind in kinds.items() if not kind.startswith("ClassVar")]
        cls.__names = (*cls.__names, *own)
        cls.__defaults = {**cls.__defaults, **{name: vars(cls)[name] for name in own if name in vars(cls)}}

    def __init__(self, *given: Any, **named: Any) -> None:
        names = self.__names
        in_order = dict(zip(names, given, strict=False))
        values = {**self.__defaults, **in_order, **named}
        if len(given) > len(names) or values.keys() != set(names) or not in_order.keys().isdisjoint(named):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(names)}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} is frozen")

    def _asdict(self) -> dict[str, Any]:
        """As that of a named tuple, whose name no field can have."""
        held = vars(self)
        return {name: held[name] for name in self.__names}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(self) is type(other) and self._asdict() == other._asdict()

    def __hash__(self) -> int:
        return hash(tuple(self._asdict().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


R = TypeVar("R", bound=Record)


def replace(record: R, /, **changes: Any) -> R:
    """A record of the same class with other values of some fields."""
    return type(record)(**{**record._asdict(), **changes})
