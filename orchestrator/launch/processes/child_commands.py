"""Command lines of programs that end with the process that starts them."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.safe_path import isolated_command

_PROGRAM = Path(__file__).with_name("parent_death_signal.py")


def tied(*command: str) -> list[str]:
    """The command line of a command that gets SIGTERM when this process dies."""
    return isolated_command(str(_PROGRAM.absolute()), str(os.getpid()), *command)
