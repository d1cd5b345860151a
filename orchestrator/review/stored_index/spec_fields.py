"""The spec of a run by dotted keys, as far as it differs from another run's: thousands of runs are much alike."""

from __future__ import annotations

import json
import sys
from collections.abc import ItemsView, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from orchestrator.files.stored_files import parse_json

_MOST_DIFFERENCES = 40


class Base:
    """A spec that others are like, as JSON text: it is parsed once somebody asks for a field."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """Its fields."""
        return {key: value for key, value in _texts(self.text).items() if value is not None}


class SpecFields(Mapping[str, str]):
    """The fields of a spec. `differences`: those that are not as in the base, as JSON text; null for a missing one."""

    def __init__(self, base: Base, differences: str) -> None:
        self.base = base
        self.differences = differences

    @cached_property
    def _own(self) -> Mapping[str, str | None]:
        return _texts(self.differences)

    def __getitem__(self, key: str) -> str:
        value = self._own[key] if key in self._own else self.base.fields.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        keys = dict.fromkeys((*self.base.fields, *self._own))
        return (key for key in keys if key not in self._own or self._own[key] is not None)

    def items(self) -> ItemsView[str, str]:
        """Faster than one by one: pages ask this of thousands."""
        found = {**self.base.fields}
        for key, value in self._own.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found.items()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def like_others(spec: Mapping[str, str], bases: Mapping[Base, int]) -> SpecFields:
    """A spec as differences from one of the last of these bases, or from itself as a new one."""
    if isinstance(spec, SpecFields):
        return spec
    for base in islice(reversed([*bases]), 2):
        own: dict[str, str | None] = {key: value for key, value in spec.items() if base.fields.get(key) != value}
        own |= {key: None for key in base.fields if key not in spec}
        if len(own) <= _MOST_DIFFERENCES:
            return SpecFields(base, _written(own))
    return SpecFields(Base(_written(dict(spec))), "{}")


def _written(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _texts(text: str) -> dict[str, str | None]:
    """The texts of a JSON object; without what is none."""
    try:
        found = parse_json(text.encode())
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        sys.intern(key): None if value is None else sys.intern(value)
        for key, value in found.items()
        if value is None or isinstance(value, str)
    }
