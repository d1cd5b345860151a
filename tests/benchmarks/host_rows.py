"""Keeps what a benchmark of this folder measured: its rows in docs/benchmarks/data/host.csv take the place of the last
ones, with the setup they are of in setups.csv.
"""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "data"
Figure = tuple[str, str, str, str]
"""(case, quantity, unit, value)."""


def save(
    benchmark: str,
    figures: Sequence[Figure],
    loads: Sequence[float],
    packages: Sequence[str] = (),
    repeats: Sequence[Sequence[float]] = (),
) -> None:
    """Write them. `loads`: load averages beside it; `repeats`: the seconds of each repeat, of one case after the other,
    which belong to its `time`.
    """
    setup = f"{date.today()}-{benchmark}"
    of_times = iter(repeats)
    rows = []
    for case, quantity, unit, value in figures:
        each = next(of_times, ()) if quantity == "time" else ()
        rows.append([benchmark, setup, case, quantity, unit, value, " ".join(f"{one:.2f}" for one in each)])
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"
    software = ", ".join(f"{name} {version(name)}" for name in packages)
    note = f"load average {min(loads):.1f} to {max(loads):.1f}"
    earlier = _replace("host", 0, {benchmark}, rows)
    _replace("setups", 0, {row[1] for row in earlier}, [[setup, str(date.today()), "", machine, software, note]])


def _replace(kind: str, column: int, old: set[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Put rows in the place of those with such a value; returns these."""
    path = DATA / f"{kind}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        header, *known = csv.reader(file)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([*(row for row in known if row[column] not in old), *rows])
    return [row for row in known if row[column] in old]
