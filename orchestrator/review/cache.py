"""What took long to find out, kept in memory for whoever asks next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """Values by what they were made of: those that were asked for last, whose weights together are at most `most`.
    Safe for use by several threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """The value; None where it is not kept."""
        with self._changing:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: Value, weight: int = 1) -> None:
        """Keep it; one that is heavier than all may be is not kept."""
        with self._changing:
            self._weight -= self._values.pop(key, (value, 0))[1]
            if weight > self._most:
                return
            self._values[key] = value, weight
            self._weight += weight
            while self._weight > self._most:
                self._weight -= self._values.popitem(last=False)[1][1]
