"""Fixtures of tests that train: code that runs in ranks first, and real text."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.faults import PATIENCE
from support.made_once import made_once


@pytest.fixture
def inject(tmp_path: Path) -> Callable[[str], Path]:
    """inject(code) -> a file that runs in every rank before the training, and in nothing else.

    Its folder on PYTHONPATH does the same for ranks that torchrun starts. What is injected later replaces it.
    """

    def write(code: str) -> Path:
        folder = tmp_path / "injected"
        folder.mkdir(exist_ok=True)
        lines = "".join(f"    {line}\n" for line in code.strip().splitlines())
        path = folder / "sitecustomize.py"
        # What the code imports comes as it does in a rank: without plain_megatron first it takes three times as long.
        begin = '    from orchestrator import plain_megatron\n    RANK = int(os.environ["RANK"])\n'
        path.write_text(f'import os, sys\n\nif "RANK" in os.environ:\n{begin}{lines}')
        return path

    return write


@pytest.fixture(scope="session")
def real_text(shared_folder: Path) -> list[str]:
    """Prefixes of two indexed data sets: parts of the source of Python's standard library, as bytes."""
    packages = ("json", "email")
    folder = made_once(
        shared_folder / "text",
        lambda folder: [tokenized(package, folder / package, "--append-eod") for package in packages],
    )
    return [str(folder / package) for package in packages]


@pytest.fixture(scope="session")
def real_sentences(shared_folder: Path) -> str:
    """Prefix of an indexed data set of sentences: the same kind of text, as bytes."""
    folder = made_once(
        shared_folder / "sentences", lambda folder: tokenized("email", folder / "email", "--split-sentences")
    )
    return str(folder / "email")


PACKAGES = ("asyncio", "email", "multiprocessing", "unittest", "xml")


def tokenized(package: str, prefix: Path, *options: str) -> str:
    """Make an indexed data set of a package of Python's standard library, as bytes; its prefix."""
    library = Path(sysconfig.get_path("stdlib"))
    return tokenize([library / package], prefix, *options)


def standard_library(prefix: Path) -> str:
    """Make an indexed data set of some of Python's standard library, as bytes, unless it is there; its prefix."""
    if prefix.with_suffix(".idx").exists():
        return str(prefix)
    library = Path(sysconfig.get_path("stdlib"))
    return tokenize([library / package for package in PACKAGES], prefix, "--append-eod")


def tokenize(sources: Sequence[Path], prefix: Path, *options: str) -> str:
    """Make an indexed data set of files and folders, as bytes; its prefix."""
    command = [sys.executable, "-m", "orchestrator", "data", "tokenize", *map(str, sources), *options]
    command += ["--output-prefix", str(prefix), "--tokenizer-type", "byte_level", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return str(prefix)
