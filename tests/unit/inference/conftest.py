"""What the tests of generation share: the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Commands
from support.faults import CommandLine, Ranks


@pytest.fixture
def orchestrator(tmp_path: Path, commands: Commands, ranks: Ranks) -> CommandLine:
    return CommandLine(tmp_path, commands, ranks)
