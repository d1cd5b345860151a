"""A project that another machine has sent to this login node, with the command that is being run (orchestrator/login).

<project>/tree/       its files, and links to what the project's folder here has beside them
<project>/names       the files that were sent, each ended by a zero byte
<project>/code.json   which code it is there, and uncommitted changes in code.diff
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ORCHESTRATOR_PROJECT"
"""The folder of the project, in the environment of a command that was sent."""


@dataclass(frozen=True)
class SentProject:
    """The folder of a project that was sent."""

    path: Path

    @property
    def tree(self) -> Path:
        """Where the command works, or in a folder of it."""
        return self.path / "tree"

    def names(self) -> list[str]:
        """The files that were sent, relative to the tree."""
        return [os.fsdecode(name) for name in self.read("names").split(b"\0") if name]

    def read(self, name: str) -> bytes:
        """A file that was sent with it."""
        return (self.path / name).read_bytes()

    def links(self) -> Iterator[str]:
        """What else is in the tree: links to what was here before."""
        names = set(self.names())
        for folder, folders, files in os.walk(self.tree):
            for each in (*folders, *files):
                name = os.path.relpath(os.path.join(folder, each), self.tree)
                if name not in names and os.path.islink(os.path.join(folder, each)):
                    yield name


def sent_project() -> SentProject | None:
    """The project that this command was sent with; None where it was typed on this machine."""
    path = os.environ.get(VARIABLE)
    return SentProject(Path(path).resolve()) if path else None
