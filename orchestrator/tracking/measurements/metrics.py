"""metrics.jsonl: written by rank 0, read by the progress display, the MLflow follower and the review pages."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic_core import from_json

from orchestrator.files.stored_files import (
    END_OF_TIME,
    MOST_COUNTED,
    MOST_LINE_BYTES,
    count,
    end_of_line,
    is_plain,
    lines_from,
    open_stored,
    parse_json,
    parse_line,
)
from orchestrator.run_directory.rundir import RunDir, append_line

_CHUNK_BYTES = 1 << 16
"""What is read together: little more than who takes few records at a time takes, for the rest is read again."""
_MOST_SKIPPED_BYTES = 2 << 30
_RECORDS_AT_A_TIME = 2000
_LINES_AT_A_TIME = 200
"""What is parsed together; more takes memory, and no less time."""
_FLOATS = frozenset({float})


class Metric(NamedTuple):
    """What was measured at one step. `time` in seconds since the epoch; samples and tokens consumed so far."""

    time: float
    iteration: int
    samples: int
    tokens: int
    values: Mapping[str, float]

    @property
    def is_evaluation(self) -> bool:
        """Whether this was measured beside the steps: a validation or a test, whose iteration may have a record of its
        steps as well.
        """
        return "train/loss" not in self.values

    @property
    def with_progress(self) -> Mapping[str, float]:
        """The values, and how far the training had come. A record of steps says that, and no evaluation repeats it: one
        point a step.
        """
        if self.is_evaluation:
            return self.values
        return {**self.values, "progress/samples": float(self.samples), "progress/tokens": float(self.tokens)}


class MetricLog:
    """Appends to metrics.jsonl. `check` is called before each write and raises when this process may not write."""

    def __init__(self, run: RunDir, check: Callable[[], None]) -> None:
        self._path = run.metrics_file
        self._check = check

    def append(
        self, iteration: int, samples: int, tokens: int, values: Mapping[str, float], measured: float | None = None
    ) -> None:
        """Add one line. `measured`: when, in seconds since the epoch; now by default.

        Raises what `check` raises (LeaseLost), and OSError when the disk refuses.
        """
        self._check()
        append_line(
            self._path,
            {
                "time": time.time() if measured is None else measured,
                "iteration": iteration,
                "samples": samples,
                "tokens": tokens,
                "values": {key: _to_json(float(value)) for key, value in values.items()},
            },
        )


class MetricTail:
    """Reads metrics.jsonl as it grows. `offset` is the byte after the last whole line read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def poll(self, limit: int | None = None) -> list[Metric]:
        """The whole records since `offset`, at most `limit` of them; a line still being written waits.

        Lines that are not records (torn by a crash) are passed over. A file shorter than `offset` was replaced and is
        read from its start. A file that does not exist yet has no records.
        """
        try:
            with open_stored(self.path, self.path.parent) as file:
                return self._read(file, limit)
        except FileNotFoundError:
            return []

    def _read(self, file: BinaryIO, limit: int | None) -> list[Metric]:
        found: list[Metric] = []
        if file.seek(0, os.SEEK_END) < self.offset:
            self.offset = 0
        file.seek(self.offset)
        pending, size = b"", _CHUNK_BYTES
        while chunk := file.read(size):
            *lines, pending = (pending + chunk).split(b"\n")
            size = _CHUNK_BYTES if lines else 2 * size  # a line without an end is not copied again for each chunk
            if not lines and len(pending) > MOST_LINE_BYTES:
                if (end := end_of_line(file, _MOST_SKIPPED_BYTES)) is None:
                    return found
                self.offset, pending, size = end, b"", _CHUNK_BYTES
                continue
            while lines:
                if len(found) == limit:
                    return found
                most = _LINES_AT_A_TIME if limit is None else min(_LINES_AT_A_TIME, limit - len(found))
                part, lines = lines[:most], lines[most:]
                self.offset += sum(map(len, part)) + len(part)
                found += parsed(part)
        return found


def read_records(path: Path) -> Iterator[Metric]:
    """Everything measured, in the order in which it was written, a part of the log in memory at a time."""
    tail = MetricTail(path)
    while found := tail.poll(_RECORDS_AT_A_TIME):
        yield from found


def read_metrics(run: RunDir) -> list[Metric]:
    """Everything measured, by iteration. Where an iteration was run again after a resume, its last values count."""
    return merge(MetricTail(run.metrics_file).poll())


def read_series(run: RunDir, key: str) -> list[tuple[int, float]]:
    """(iteration, value) of one key, by iteration."""
    return [(metric.iteration, metric.values[key]) for metric in read_metrics(run) if key in metric.values]


def is_measured(run: RunDir, key: str, iteration: int, since: float = 0.0) -> bool:
    """Whether a key was measured at an iteration, after a moment in seconds since the epoch. Only the lines that name
    the key are parsed.
    """
    name = json.dumps(key).encode()
    try:
        with run.open(run.metrics_file) as file:
            lines = (line for line, _ in lines_from(file, 0, os.fstat(file.fileno()).st_size))
            found = (_parse(line) for line in lines if name in line)
            at_that = (metric for metric in found if metric is not None and metric.iteration == iteration)
            return any(key in metric.values and metric.time >= since for metric in at_that)
    except FileNotFoundError:
        return False


def merge(metrics: Iterable[Metric]) -> list[Metric]:
    """One record per iteration, by iteration: of several, the later wins for each key."""
    merged: dict[int, Metric] = {}
    for metric in metrics:
        earlier = merged.get(metric.iteration)
        if earlier is not None:
            values = {**earlier.values, **metric.values}
            metric = Metric(metric.time, metric.iteration, metric.samples, metric.tokens, values)
        merged[metric.iteration] = metric
    return [merged[iteration] for iteration in sorted(merged)]


def _to_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def parsed(lines: list[bytes]) -> list[Metric]:
    """The records in lines, without those that hold anything else. All at once takes a quarter of the time of one by
    one, which is left for where one of them is damaged.
    """
    together = b"[%b]" % b",".join(lines)
    records: Any
    try:
        # Pydantic's parser takes a third of the time of the standard library's, and leaves strings as they are.
        records = from_json(together) if is_plain(together) else parse_json(together, is_walked=False)
    except ValueError:
        records = []
    if len(records) == len(lines):
        return [metric for record in records if (metric := _metric(record)) is not None]
    return [metric for line in lines if (metric := _parse(line)) is not None]


def step_of(line: bytes) -> tuple[int, dict[str, float]] | None:
    """The iteration and the values in a line, whatever else it lacks; None for anything else."""
    record: Any = parse_line(line)
    try:
        values = {str(key): float(value) for key, value in record["values"].items()}
        iteration = count(int(record["iteration"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return None if iteration is None else (iteration, values)


def _parse(line: bytes) -> Metric | None:
    """The record in a line; None for anything else."""
    return _metric(parse_line(line))


def _metric(record: Any) -> Metric | None:
    """The record that a line of JSON holds; None for anything else, and where its numbers are none of a training."""
    try:
        values = record["values"]
        if not _FLOATS.issuperset(map(type, values.values())):
            values = {str(key): float(value) for key, value in values.items()}
        metric = Metric(
            time=float(record["time"]),
            iteration=int(record["iteration"]),
            samples=int(record["samples"]),
            tokens=int(record["tokens"]),
            values=values,
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    is_counted = min(metric[1:4]) >= 0 and max(metric[1:4]) <= MOST_COUNTED
    return metric if is_counted and 0 <= metric.time < END_OF_TIME else None
