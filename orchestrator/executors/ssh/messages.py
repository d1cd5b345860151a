"""What the launcher and the program on a host say to each other, in lines of JSON over the connection.

host      {"ready": {...}} or {"refused": "why"}; what it prints after its start is the training's output
launcher  {"launch": {"id": ...}}, with "earlier": the ids of earlier launches, where the host has a copy of the run
          directory; then {"start": {variables}}; an empty line every few seconds; {"stop_file": text} for the copy;
          {"stop": seconds}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

SECONDS_BETWEEN_SIGNS = 2.0
"""How often the launcher shows that it is there."""
SECONDS_WITHOUT_SIGN = 30.0
"""A host that hears nothing for so long ends its processes."""
CONNECTION_LOST = 255
"""Exit code of ssh where the connection is at fault, and not the program."""


@dataclass(frozen=True)
class Ready:
    """A host that can start: the address at which it was reached, a port that is free there, and its own names."""

    address: str
    port: int
    names: tuple[str, ...] = ()


def line_of(kind: str, said: Any) -> bytes:
    """One message."""
    return json.dumps({kind: said}).encode() + b"\n"


def ready_line(ready: Ready) -> bytes:
    """The message of a host that can start."""
    return line_of("ready", asdict(ready))


def read_message(line: bytes) -> tuple[str, Any] | None:
    """Its kind and content; None for a line that is no message: whatever a login shell prints comes first."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or len(record) != 1:
        return None
    [(kind, said)] = record.items()
    return kind, said


def read_ready(said: Any) -> Ready | None:
    """What a host said of itself, where that makes sense."""
    try:
        return Ready(str(said["address"]), int(said["port"]), tuple(str(name) for name in said["names"]))
    except (KeyError, TypeError, ValueError):
        return None
