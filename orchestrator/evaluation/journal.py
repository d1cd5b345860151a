"""What a task has computed so far, in a file: who is killed goes on where the file ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.files.stored_files import read_json_lines
from orchestrator.run_directory.rundir import append_line

_MOST_BYTES = 1 << 30
"""A line has the values of a batch, and a task may have very many of them."""


class Journal:
    """Values by part and by place in it, one line for each batch. A line that a crash has torn is computed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[int, Any]] = defaultdict(dict)
        for record in read_json_lines(path, path.parent, _MOST_BYTES, _MOST_BYTES):
            match record:
                case {"part": str(part), "places": [*places], "values": [*values]} if _are_whole(places) and len(
                    places
                ) == len(values):
                    self._found[part].update(zip(places, values, strict=True))

    def known(self, part: str) -> dict[int, Any]:
        """The values of a part that are there, by place."""
        return self._found[part]

    def add(self, part: str, places: Sequence[int], values: Sequence[Any]) -> None:
        """Keep the values of a batch. Raises OSError when the disk refuses."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._path, {"part": part, "places": list(places), "values": list(values)})
        self._found[part].update(zip(places, values, strict=True))

    def remove(self) -> None:
        """The result is there: the parts are not needed any more."""
        self._path.unlink(missing_ok=True)


def _are_whole(places: Sequence[Any]) -> bool:
    return all(type(place) is int for place in places)
