"""Grouped-query attention whose output is scaled: what else it is made of is as in that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Options:
    """What a spec gives."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= 1:
            raise ValueError(f"scale is between 0 and 1, not {self.scale}")
