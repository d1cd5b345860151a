"""Migrations as a person asks for them, and the jobs that they become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.report import Migration
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

SCRIPTS = Path(__file__).parent / "scripts"

SMALLEST = {
    "--num-layers": "4",
    "--hidden-size": "128",
    "--num-attention-heads": "4",
    "--seq-length": "64",
    "--max-position-embeddings": "64",
    "--micro-batch-size": "2",
    "--train-iters": "100",
    "--lr": "1e-3",
    "--data-path": "data/mine",
    "--vocab-file": "vocab.json",
    "--merge-file": "merges.txt",
}
"""Flags that Megatron-LM wants of every GPT."""


class Migrated:
    """A migration, and the job that it becomes."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.text = job_text(migration)

    @property
    def job(self) -> JobSpec:
        return load_text(self.text).job

    def outcome(self, flag: str) -> str:
        """What became of a flag, named without its values."""
        found = [account for account in self.migration.accounts if account.flag.split()[0] == flag]
        assert found, f"{flag} is not accounted for"
        return found[-1].outcome

    def reason(self, flag: str) -> str:
        found = [account for account in self.migration.accounts if account.flag.split()[0] == flag]
        return found[-1].reason or ""


def recorded_choices() -> list[tuple[str, list[str]]]:
    """Flags of Megatron-LM's parsers that take one of several values."""
    lines = (Path(__file__).parent / "parser_flags.txt").read_text().splitlines()
    words = [line.split() for line in lines if not line.startswith("#")]
    return [(flag, more[0].split(",")) for flag, _, _, *more in words if more]


Flags = Callable[..., Migrated]


@pytest.fixture
def flags() -> Flags:
    """Migrates the smallest GPT with more flags, and without those that are None."""

    def migrate(*more: str, **instead: str | None) -> Migrated:
        replaced: dict[str, Any] = {f"--{name.replace('_', '-')}": value for name, value in instead.items()}
        needed = {name: value for name, value in {**SMALLEST, **replaced}.items() if name not in more}
        words = [word for name, value in needed.items() if value is not None for word in (name, value)]
        return Migrated(migrate_words(["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *words, *more], "test"))

    return migrate


@pytest.fixture
def script_text() -> Callable[[str], str]:
    """The text of one of the scripts beside these tests."""
    return lambda name: (SCRIPTS / name).read_text()
