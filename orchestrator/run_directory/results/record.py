"""What evaluations of checkpoints have found, without torch: one JSON file for each checkpoint and task.

    evaluations/iter_0000500.lambada-test.jsonl.3f9a12cd.json         a result, renamed into place when it is complete
    evaluations/iter_0000500.lambada-test.jsonl.3f9a12cd.part.jsonl   what is there of one that is not

The last word is the start of the result's key: a digest of the checkpoint, the task with its options, and what is in
its files. So a result is found again by whoever asks the same, and by nobody else.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.files.stored_files import count, moment, number, read_json
from orchestrator.run_directory.rundir import RunDir, write_atomically

Known = TypeVar("Known")

_KEY_LENGTH = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Measure:
    """A number and its standard error; None where there is none."""

    value: float
    stderr: float | None = None


@dataclass(frozen=True)
class Result:
    """What one task says of one checkpoint. Times in seconds; `finished` since the epoch."""

    name: str
    """What it is called in tables and in MLflow, such as `lambada/test.jsonl`."""
    task: str
    key: str
    iteration: int
    checkpoint: str
    metrics: Mapping[str, Measure]
    """The first is the one that matters most."""
    counts: Mapping[str, int]
    options: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]]
    """Path, bytes and SHA-256 of each file that was read."""
    finished: float
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)
    """What does not change what is measured but for rounding: layout, device, versions."""

    def to_json(self) -> dict[str, Any]:
        """JSON values only: a number that is NaN or infinite becomes a string."""
        metrics = {
            name: {"value": json_number(measure.value), "stderr": json_number(measure.stderr)}
            for name, measure in self.metrics.items()
        }
        return {**vars(self), "metrics": metrics, "files": [dict(file) for file in self.files]}


def key_of(*facts: object) -> str:
    """A digest of JSON values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def result_path(folder: Path, iteration: int, name: str, key: str) -> Path:
    """Where a result is kept."""
    plain = _UNSAFE.sub("-", name.replace("/", "-"))[-_LONGEST_NAME:]
    return folder / f"iter_{iteration:07d}.{plain}.{key[:_KEY_LENGTH]}.json"


def journal_path(result: Path) -> Path:
    """Where a result's parts are kept until it is complete."""
    return result.with_name(f"{result.name.removesuffix('.json')}.part.jsonl")


def write_result(path: Path, result: Result) -> None:
    """Rename a result into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result.to_json(), indent=1) + "\n")


def read_result(path: Path) -> Result | None:
    """The result in a file; None where there is none that can be read."""
    try:
        record = read_json(path, path.parent)
        metrics = {
            str(name): Measure(float(entry["value"]), None if entry["stderr"] is None else float(entry["stderr"]))
            for name, entry in record["metrics"].items()
        }
        return Result(
            name=str(record["name"]),
            task=str(record["task"]),
            key=str(record["key"]),
            iteration=_whole(record["iteration"]),
            checkpoint=str(record["checkpoint"]),
            metrics=metrics,
            counts={str(name): _whole(each) for name, each in record["counts"].items()},
            options=dict(record["options"]),
            files=[dict(file) for file in record["files"]],
            finished=_known(moment(record["finished"])),
            seconds=_known(number(record["seconds"])),
            setting=dict(record["setting"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _whole(value: Any) -> int:
    return _known(count(value))


def _known(value: Known | None) -> Known:
    if value is None:
        raise ValueError("it is no such number")
    return value


def result_paths(run: RunDir) -> list[Path]:
    """Every file of a run that a result is in, by name."""
    return [path for path in run.listed(run.evaluations) if path.match("iter_*.json")]


def results_of(run: RunDir) -> list[Result]:
    """Everything that was measured of a run's checkpoints, oldest checkpoint first and in the order it was measured."""
    found = [result for path in result_paths(run) if (result := read_result(path)) is not None]
    return sorted(found, key=lambda result: (result.iteration, result.finished))


def newest_results(run: RunDir) -> list[Result]:
    """Of each name, that of the latest checkpoint; measured several times, the last one."""
    newest = {result.name: result for result in results_of(run)}
    return [newest[name] for name in sorted(newest)]


def metric_values(result: Result) -> dict[str, float]:
    """The numbers of a result by the names that they have beside a run's other metrics."""
    values = {}
    for name, measure in result.metrics.items():
        values[f"evaluation/{result.name}/{name}"] = measure.value
        if measure.stderr is not None:
            values[f"evaluation/{result.name}/{name}_stderr"] = measure.stderr
    return values


def json_number(value: float | None) -> float | str | None:
    """As JSON has it, which has no numbers that are not finite."""
    return value if value is None or math.isfinite(value) else str(value)
