"""What several flags say together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags


@dataclass(frozen=True)
class FlagGroup:
    """Flags that are read together, and the fields that they are."""

    flags: dict[str, int | None]
    """Each with how many words it takes; None for any number."""
    read: Callable[[GivenFlags], None]
    write: Callable[[FlagWriter], None]
    paths: tuple[str, ...]
