"""What was measured or published, as rows of text: docs/benchmarks/data. docs/benchmarks/method.md has the columns."""

from __future__ import annotations

import csv
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "data"
Record = dict[str, str]


def records(kind: str, **where: str) -> list[Record]:
    """The rows of one file whose columns are as given."""
    with (DATA / f"{kind}.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[name] == value for name, value in where.items())]


def record(kind: str, **where: str) -> Record:
    """The only such row."""
    [found] = records(kind, **where)
    return found


def degrees(layout: str) -> dict[str, int]:
    """`TP2 DP4` as {"TP": 2, "DP": 4}; what is not named is 1."""
    named = {part[:2]: int(part[2:]) for part in layout.split()}
    return {name: named.get(name, 1) for name in ("TP", "PP", "VP", "CP", "EP", "DP")}


def milliseconds(row: Record) -> str:
    """The median or mean, and the fastest and the slowest step."""
    shown = f"{float(row['ms']):,.4g}" if float(row["ms"]) < 1e4 else f"{float(row['ms']):,.0f}"
    if not row["fastest_ms"]:
        return shown
    return f"{shown} ({float(row['fastest_ms']):,.4g} to {float(row['slowest_ms']):,.4g})"


def date_of(row: Record) -> str:
    return record("setups", setup=row["setup"])["date"]
