"""Numbers in the names of files, of which the highest counts: leases, labels, specs."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import UserError

NUMBER = r"(\d{1,9})"
"""What is read as one: a file of any larger number is none that was ever made."""
_MOST = 10**9 - 1


def next_number(newest: int, folder: Path) -> int:
    """The number after the newest one in a folder. Raises UserError where a file of that number would not be read."""
    if newest >= _MOST:
        raise UserError(
            f"no file can follow number {newest} in {folder}: nothing that was made there has so large a number; "
            "remove its file",
            code="numbers_used_up",
        )
    return newest + 1
