"""What this process asks of the system, however it does: Python's audit events."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

Action = Callable[[str, tuple[Any, ...]], object]

_WATCHED: list[tuple[frozenset[str], Action]] = []


@contextmanager
def watched(events: tuple[str, ...], action: Action) -> Iterator[None]:
    """Have `action(event, arguments)` called at these events, meanwhile; what it raises, who caused the event gets."""
    _listen()
    watching = (frozenset(events), action)
    _WATCHED.append(watching)
    try:
        yield
    finally:
        _WATCHED.remove(watching)


@contextmanager
def files_opened() -> Iterator[list[Path]]:
    """The files that are opened meanwhile, in this order, by what they are opened by: a path, or a name in a folder."""
    found: list[Path] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if isinstance(arguments[0], str | os.PathLike):
            found.append(Path(arguments[0]))

    with watched(("open",), note):
        yield found


@cache
def _listen() -> None:
    """From now on: such a hook stays for as long as its process."""
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    for events, action in _WATCHED:
        if event in events:
            action(event, arguments)
