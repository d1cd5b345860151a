"""Holding a fake training: a test, and not the speed of the machine, decides how long it goes on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gate:
    """What waits until a test opens it."""

    file: Path

    def after(self, step: int) -> dict[str, str]:
        """Variables that hold the fake training after a step; it goes on when the gate opens, or is told to stop."""
        return {"FAKE_HOLD": f"{step}:{self.file}"}

    def python(self) -> str:
        """A Python that starts nothing before the gate opens."""
        path = self.file.with_name("python-behind-the-gate")
        path.write_text(f"#!/bin/sh\nuntil [ -e '{self.file}' ]; do sleep 0.02; done\nexec '{sys.executable}' \"$@\"\n")
        path.chmod(0o755)
        return str(path)

    def open(self) -> None:
        """From now on nothing waits."""
        self.file.touch()
