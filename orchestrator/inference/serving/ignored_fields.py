"""Fields that OpenAI's interface has and this one has not: taken where they ask for nothing, else refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_KEYS = 64

Inert = Mapping[str, tuple[Any, ...]]
"""Names of such fields, each with the values that ask for nothing."""


def without_inert(given: Mapping[str, Any], inert: Inert) -> dict[str, Any]:
    """The other fields of a part of a request. Raises ValueError for one that asks for something, and for a part of
    very many fields: each of them may be told of.
    """
    if len(given) > _MOST_KEYS:
        raise ValueError(f"{len(given)} fields; at most {_MOST_KEYS}")
    for name, nothing in inert.items():
        if name in given and given[name] not in nothing:
            raise ValueError(f"{name} is not supported")
    return {name: value for name, value in given.items() if name not in inert}
