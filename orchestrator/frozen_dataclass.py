"""`@dataclass(frozen=True)` in a third of the time that the standard library takes to make a class.

The standard library compiles six methods for each class, one by one. Here the constructor alone is compiled, and the
other methods go by the names of the fields: commands import a hundred such classes before they do anything. For readers
and type checkers it is the standard one, without slots, `__post_init__` and fields that the constructor does not take.
"""

from __future__ import annotations

import dataclasses
import reprlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen):
        assert frozen, "what can be changed is a dataclass of the standard library"
        return _frozen


def _frozen(cls: type) -> type:
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(cls)
    methods = {
        "__init__": _constructor(cls, fields),
        "__setattr__": _refuse_to_set,
        "__delattr__": _refuse_to_delete,
        "__repr__": _repr_of([each.name for each in fields if each.repr]),
        **_comparison([each.name for each in fields if each.compare]),
    }
    for name, method in methods.items():
        if vars(cls).get(name) is None:  # a class with an `__eq__` of its own has None as `__hash__`
            setattr(cls, name, method)
    return cls


def _constructor(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    parameters, body = [], []
    values: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    for each in fields:
        name, value = each.name, each.name
        if each.default is not dataclasses.MISSING:
            values[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        elif each.default_factory is not dataclasses.MISSING:
            values[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        body.append(f"\n _set(self, {name!r}, {value})")
    exec(f"def __init__(self, {', '.join(parameters)}):{''.join(body) or ' pass'}", values)
    return values["__init__"]


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _repr_of(names: list[str]) -> Any:
    def described(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return reprlib.recursive_repr()(described)


def _comparison(names: list[str]) -> dict[str, Any]:
    values = attrgetter(*names) if names else lambda self: ()

    def equal(self: object, other: object) -> Any:
        return values(self) == values(other) if type(self) is type(other) else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hashed}
