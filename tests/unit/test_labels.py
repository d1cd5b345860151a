"""The labels of a run: what their events come to, and writers that do not see each other."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.run_directory.events.labels import (
    Archived,
    LabelEvent,
    Labels,
    Noted,
    Renamed,
    Tagged,
    Unarchived,
    Untagged,
)
from orchestrator.run_directory.labels import label_events, read_labels, write_label


@pytest.mark.parametrize(
    ("events", "labels"),
    [
        ([], Labels()),
        ([Tagged(tags=("b", "a")), Tagged(tags=("a",)), Untagged(tags=("b", "c"))], Labels(tags=("a",))),
        ([Noted(note="one"), Noted(note="two")], Labels(note="two")),
        ([Noted(note="one"), Noted(note="")], Labels()),
        ([Archived(), Archived()], Labels(archived=True)),
        ([Archived(), Unarchived()], Labels()),
        ([Renamed(to="b", former="a"), Renamed(to="c", former="b")], Labels(name="c", former_names=("a", "b"))),
        ([Renamed(to="b", former="a"), Renamed(to="a", former="b")], Labels(name="a", former_names=("b",))),
        ([Renamed(to=None, former=None), Tagged(tags=None), Noted(note=None)], Labels()),
    ],
)
def test_what_events_come_to(events: list[LabelEvent], labels: Labels) -> None:
    assert Labels.of(events) == labels


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda each: write_label(tmp_path, Tagged(tags=(f"t{each:02}",))), range(40)))
    assert read_labels(tmp_path).tags == tuple(f"t{each:02}" for each in range(40))
    assert sorted(os.listdir(tmp_path)) == sorted(f"label.{number}.json" for number in range(1, 41))


def test_what_is_no_label_is_passed_over(tmp_path: Path) -> None:
    write_label(tmp_path, Tagged(tags=("a",)))
    outside = tmp_path / "outside.json"
    outside.write_text('{"event": "tagged", "tags": ["from elsewhere"]}')
    run = tmp_path / "run"
    run.mkdir()
    (run / "label.1.json").symlink_to(outside)
    (run / "label.2.json").write_text('{"event": "tagged", "tags": ["a"')
    (run / "label.3.json").write_text('{"event": "of a later version"}')
    (run / "label.x.json").write_text("")
    os.mkfifo(run / "label.4.json")
    (run / f"label.{10**18 - 1}.json").write_text("{}")  # after which the next would not be read
    write_label(run, Noted(note="kept"))
    assert read_labels(run) == Labels(note="kept")
    assert [event.kind for event in label_events(run)] == ["of a later version", "noted"]
    assert read_labels(tmp_path / "missing") == Labels()
