"""A tracker: the steps of a run as lines of a file in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Options:
    """What a spec gives."""

    file: str
    key: str = "train/loss"


class Curves:
    """A sink."""

    Options = Options
    title = "Curves"
    keeps_at_once = True
    longest_wait_seconds = 10.0

    def __init__(self, run: Path, options: Options) -> None:
        self._path = run / options.file
        self._key = options.key

    def open(self, position: Any) -> None:
        self._append(f"open after {position.step}")

    def describe(self, description: Any) -> None:
        self._append(f"state {description.state}")

    def write(self, records: Sequence[Any]) -> None:
        for record in records:
            if self._key in record.values:
                self._append(f"step {record.iteration} {record.values[self._key]!r}")

    def rewind(self, step: int) -> None:
        self._append(f"rewind to {step}")

    def close(self, state: str) -> None:
        self._append(f"close {state}")

    def drop(self) -> None:
        self._append("drop")

    def _append(self, line: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{line}\n")
