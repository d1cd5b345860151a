"""The labels of a run or a sweep, in files of its folder: label.1.json, label.2.json, …, one for each change.

Anybody may label a run while its training writes events.jsonl on another host, and appending from two hosts can
overwrite a line on NFS. So each change is a whole file under the next free number, which only one writer gets:
nothing is torn, and neither side's words are lost. They lie directly in the folder, so that its listing, and the time
that it was changed, tell of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.files.file_numbers import NUMBER, next_number
from orchestrator.files.stored_files import read_object
from orchestrator.run_directory.events.labels import LabelEvent, Labels
from orchestrator.run_directory.events.types import Event, event_of
from orchestrator.run_directory.exclusive_files import create_exclusively

_LABEL_FILE = re.compile(rf"label\.{NUMBER}\.json", re.ASCII)


def read_labels(folder: Path) -> Labels:
    """The labels of a run or a sweep; none where it has no such files, or they cannot be read."""
    return Labels.of(label_events(folder))


def labels_among(names: Iterable[str], folder: Path) -> Labels:
    """The same where the names in the folder are known."""
    return Labels.of(_events(names, folder))


def label_events(folder: Path) -> list[Event]:
    """Every change of its labels, oldest first."""
    return _events(_listed(folder), folder)


def label_files(folder: Path) -> list[Path]:
    """The files of its changes, oldest first; none where the folder cannot be listed."""
    return [folder / f"label.{number}.json" for number in sorted(_numbers(_listed(folder)))]


def write_label(folder: Path, event: LabelEvent) -> None:
    """Add a change. Raises OSError where the folder is gone, or the system refuses, UserError where none can follow."""
    content = (json.dumps(event.record(), separators=(",", ":")) + "\n").encode()
    number = next_number(max(_numbers(os.listdir(folder)), default=0), folder)
    while not create_exclusively(folder / f"label.{number}.json", content):
        number = next_number(number, folder)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _events(names: Iterable[str], folder: Path) -> list[Event]:
    records = (read_object(folder / f"label.{number}.json", folder) for number in sorted(_numbers(names)))
    return [event for record in records if (event := event_of(record, LabelEvent.kinds)) is not None]


def _numbers(names: Iterable[str]) -> list[int]:
    return [int(match.group(1)) for name in names if (match := _LABEL_FILE.fullmatch(name))]
