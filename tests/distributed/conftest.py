"""What the tests of whole runs share: ranks that start fast, the command line as a person uses it, and real text."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Commands
from support.faults import CommandLine, Ranks
from support.fixtures import inject, real_sentences, real_text

__all__ = ["inject", "real_sentences", "real_text"]


@pytest.fixture
def orchestrator(tmp_path: Path, commands: Commands, ranks: Ranks) -> CommandLine:
    return CommandLine(tmp_path, commands, ranks)
