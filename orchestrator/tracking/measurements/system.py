"""system/node-NNNNN.jsonl: how busy each node of a run was, read as it grows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.files.stored_files import count, lines_from, moment, open_stored, parse_line
from orchestrator.run_directory.rundir import RunDir

_LOG = re.compile(r"node-(\d{1,9})\.jsonl", re.ASCII)
_BYTES_AT_A_TIME = 64 << 20
_BYTES_OF_A_LINE = 1 << 16


@dataclass(frozen=True)
class Measurement:
    """One measurement of a node. `time` in seconds since the epoch; a list has one value for each GPU, None where it
    does not say.
    """

    time: float
    iteration: int
    host: str
    values: Mapping[str, float | list[float | None]]

    def flat(self) -> dict[str, float]:
        """One number by name, as MLflow calls it: that of the third GPU is `gpu_2_utilization_percentage`."""
        found: dict[str, float] = {}
        for name, value in self.values.items():
            if isinstance(value, list):
                rest = name.removeprefix("gpu_")
                found |= {f"gpu_{number}_{rest}": each for number, each in enumerate(value) if each is not None}
            else:
                found[name] = value
        return found


def system_logs(run: RunDir) -> dict[int, Path]:
    """The log of each node, by the node's number."""
    found = {int(match[1]): path for path in run.listed(run.system) if (match := _LOG.fullmatch(path.name))}
    return dict(sorted(found.items()))


def read_measurements(path: Path, offset: int = 0, limit: int | None = None) -> tuple[list[Measurement], int]:
    """The measurements in the whole lines from a byte on, of at most `limit` lines, and the byte after them.

    A file that is shorter was replaced and is read from its start. Lines that are no measurements (torn by a crash) are
    passed over. A file that is not there has none.
    """
    found: list[Measurement] = []
    try:
        with open_stored(path, path.parent) as file:
            offset = 0 if file.seek(0, os.SEEK_END) < offset else offset
            most = _BYTES_AT_A_TIME if limit is None else min(_BYTES_AT_A_TIME, limit * _BYTES_OF_A_LINE)
            for line, end in islice(lines_from(file, offset, most), limit):
                offset = end
                found += _parse(line)
    except FileNotFoundError:
        return [], 0
    return found, offset


def _parse(line: bytes) -> Iterator[Measurement]:
    try:
        record: Any = parse_line(line)
        values = {str(name): _value(value) for name, value in record["values"].items()}
        time, iteration = moment(record["time"]), count(record["iteration"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return
    if time is not None and iteration is not None:
        yield Measurement(time, iteration, str(record["host"]), values)


def _value(value: Any) -> float | list[float | None]:
    if isinstance(value, list):
        return [None if each is None else float(each) for each in value]
    return float(value)
