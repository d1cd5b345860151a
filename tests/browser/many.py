"""Thousands of run directories, made of copies of real ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from browser.reviewed import Reviewed
from support.event_log import lines_of

from orchestrator.run.rundir import RunDir

_HOUR = 3600.0


def many_runs(reviewed: Reviewed, runs_dir: Path, count: int, *, long: int, steps: int) -> list[RunDir]:
    """`count` runs in a folder, with specs and names of their own; the first `long` have measured so many steps.

    Files that say the same are one file with several names: the runs with many measurements share theirs.
    """
    templates = [reviewed.completed, reviewed.diverged, reviewed.changed]
    runs_dir.mkdir()
    metrics = runs_dir.parent / "long.jsonl"
    _write_long(reviewed.completed, metrics, steps)
    made = []
    for number in range(count):
        template = templates[0] if number < long else templates[number % len(templates)]
        run = RunDir(runs_dir / f"{template.name}-{number % 40:02d}" / f"{number:08x}")
        shutil.copytree(
            template.path, run.path, copy_function=_link, ignore=shutil.ignore_patterns("*.distcp", "sweep.json")
        )
        _change(run, number)
        if number < long:
            run.metrics_file.unlink()
            os.link(metrics, run.metrics_file)
        made.append(run)
    return made


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)


def _change(run: RunDir, number: int) -> None:
    """Another learning rate, and an earlier time; without a lock on any other run's files."""
    path = run.resolved()
    spec = json.loads(path.read_bytes())
    spec["optimizer"]["lr"] = 1e-4 * (1 + number)
    _replace(path, json.dumps(spec))
    lines = [{**event, "time": event["time"] - number * _HOUR} for event in lines_of(run)]
    _replace(run.events_file, "".join(json.dumps(line) + "\n" for line in lines))


def _replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def _write_long(run: RunDir, path: Path, steps: int) -> None:
    """Records of a real run, again and again with later steps."""
    with open(path, "w") as file:
        for step, record in enumerate(islice(_again(run), steps), start=1):
            values = {**record["values"]}
            values["train/loss"] = values["train/loss"] / (1 + step / steps)
            file.write(
                json.dumps(
                    {
                        **record,
                        "iteration": step,
                        "samples": 8 * step,
                        "tokens": 512 * step,
                        "time": record["time"] + step,
                        "values": values,
                    },
                    separators=(",", ":"),
                )
                + "\n"
            )


def _again(run: RunDir) -> Iterator[dict[str, Any]]:
    records = [json.loads(line) for line in run.metrics_file.read_bytes().splitlines()]
    measured = [record for record in records if "train/loss" in record["values"]]
    while True:
        yield from measured
