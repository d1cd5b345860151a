"""An empty folder and ranks that start fast, for a program that is no test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import FIXED, FOREIGN_NAMES, FOREIGN_PREFIXES
from support.faults import Ranks
from support.ranks import RankStarter


@contextmanager
def place() -> Iterator[tuple[Path, Ranks]]:
    """The folder and the ranks, with the variables that tests have; both are gone afterwards."""
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
            del os.environ[name]
    os.environ.update(FIXED)
    with tempfile.TemporaryDirectory(prefix="baseline-") as made:
        folder = Path(made).resolve()
        (folder / "ranks").mkdir()
        starter = RankStarter(folder / "ranks")
        try:
            yield folder, Ranks(starter)
        finally:
            starter.close()
