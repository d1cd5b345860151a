"""A data source: documents of one letter each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Options:
    """What a spec gives."""

    count: int
    fails_at: int | None = None


class Letters:
    """`count` documents."""

    Options = Options

    def __init__(self, options: Options) -> None:
        self._options = options

    def __iter__(self) -> Iterator[str | dict[str, Any]]:
        for number in range(self._options.count):
            if number == self._options.fails_at:
                raise OSError("the server is away")
            text = "abcdefgh"[number % 8] * 100
            yield text if number % 2 else {"text": text, "number": number}
