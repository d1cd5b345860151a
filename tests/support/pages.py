"""Pages of figures that a script writes and a test holds against what it would write now."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def write_or_check(path: Path, text: str) -> int:
    """Write the page, or with `--check` on the command line only look at it; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page is out of date")
    if parser.parse_args().check:
        return 0 if path.exists() and path.read_text() == text else 1
    path.write_text(text)
    return 0


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


_PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A page whose tables are as they are now: each stands between `<!-- table: NAME -->` and `<!-- end -->`."""
    return _PLACE.sub(lambda found: f"{found[1]}{tables[found[2]]()}\n{found[3]}", page)
