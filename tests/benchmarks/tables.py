"""Writes the tables of docs/benchmarks/results.md and accuracy.md from the rows in docs/benchmarks/data, and from what
the models of memory and time say of these now.

    PYTHONPATH=tests python tests/benchmarks/tables.py             # --check: only say whether the pages are up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from support import accuracy_tables, result_tables
from support.pages import filled

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PAGES = {"results.md": result_tables.TABLES, "accuracy.md": accuracy_tables.TABLES}


def current(name: str) -> str:
    """A page with its tables as they are now."""
    return filled((FOLDER / name).read_text(encoding="utf-8"), PAGES[name])


def main() -> int:
    """Write the pages, or with `--check` only look at them; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    check, stale = parser.parse_args().check, 0
    for name in PAGES:
        text = current(name)
        stale += text != (FOLDER / name).read_text(encoding="utf-8")
        if not check:
            (FOLDER / name).write_text(text, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
