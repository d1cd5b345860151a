"""The events of a run: their lines, and what is read of lines of any version, or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from baseline.packing import RUNS, kept
from support.event_log import log_of

from orchestrator.run_directory.events.ledger import LedgerEvent
from orchestrator.run_directory.events.log import read_events
from orchestrator.run_directory.events.types import (
    BY_LAUNCHER,
    Event,
    Exited,
    ExitedOnCluster,
    Launched,
    Requeued,
    Submitted,
    Unknown,
    Withdrawn,
    event_of,
)


def line(event: Event | None) -> str:
    assert event is not None
    return json.dumps(event.record(), separators=(",", ":"))


@pytest.mark.parametrize(
    ("name", "kinds", "least"), [("events.jsonl", Event.kinds, 100), ("ledger.jsonl", LedgerEvent.kinds, 2)]
)
def test_lines_are_what_they_were(name: str, kinds: dict[str, type[Event]], least: int) -> None:
    """Each line that an earlier version wrote, read and written again."""
    files = (file for path in RUNS.glob("*.json") for file in kept(path.stem)["texts"].items())
    stored = [each for path, lines in files if path.endswith(name) for each in lines if each]
    assert len(stored) >= least
    assert [line(event_of(json.loads(each), kinds)) for each in stored] == stored


END = {"launch_id": "a", "code": None, "cause": "killed", "message": "", "iteration": None, "evidence": ("x",)}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Submitted(job_id="7", cluster="lab"), '"submitted","job_id":"7","cluster":"lab"'),
        (
            Submitted(job_id="7", cluster=None, data_job_id="6"),
            '"submitted","job_id":"7","cluster":null,"data_job_id":"6"',
        ),
        (
            Exited(**END),
            '"exited","launch_id":"a","code":null,"cause":"killed","message":"","iteration":null,"evidence":["x"]',
        ),
        (
            ExitedOnCluster(**END, node=None),
            '"exited","launch_id":"a","code":null,"cause":"killed","message":"","iteration":null,"evidence":["x"],'
            '"node":null',
        ),
        (
            Requeued(launch_id="a", cause="hang", by=BY_LAUNCHER, delay=30.0),
            '"requeued","launch_id":"a","cause":"hang","by":"launcher","delay":30.0',
        ),
        (
            Requeued(launch_id="a", job_id="7", cause="hang", by="slurm", exclude=(), delay=0.0),
            '"requeued","launch_id":"a","job_id":"7","cause":"hang","by":"slurm","exclude":[],"delay":0.0',
        ),
        (Withdrawn(job_id="7", by="x"), '"withdrawn","job_id":"7","by":"x"'),
        (Withdrawn(launch_id="a", job_id="7", by="x"), '"withdrawn","launch_id":"a","job_id":"7","by":"x"'),
        (
            Launched(launch_id="a", host="n1", boot="b", pid=1, started=None),
            '"launched","launch_id":"a","host":"n1","boot":"b","pid":1,"started":null',
        ),
    ],
)
def test_a_line_has_its_fields_in_their_order(event: Event, text: str) -> None:
    assert line(event) == f'{{"time":{event.time},"event":{text}}}'


def test_every_version_is_read() -> None:
    later = {"event": "of a later version", "launch_id": 7, "size": 4, "nothing": None}
    damaged = {"event": "exited", "time": "soon", "code": True, "cause": [], "iteration": -1, "zone": "x"}
    unknown, exited = log_of(later, {"event": ["exited"]}, damaged, {})
    assert isinstance(unknown, Unknown)
    assert (unknown.kind, unknown.of_launch, unknown.other) == ("of a later version", "7", {"size": 4})
    assert isinstance(exited, Exited)
    assert (exited.time, exited.code, exited.cause, exited.iteration, exited.node) == (None,) * 5
    assert exited.said() == {"event": "exited", "zone": "x"}


def test_the_last_launch_is_the_newest_that_changed_anything() -> None:
    launched = {"event": "launched", "launch_id": "a"}
    refused = [{"event": "launched", "launch_id": "b"}, {"event": "exited", "launch_id": "b", "cause": "held"}]
    exited = {"event": "exited", "launch_id": "a", "cause": "killed"}
    again = {"event": "requeued", "launch_id": "a", "by": BY_LAUNCHER}
    last = log_of(launched, exited, again, *refused).last_launch
    assert last is not None
    assert (last.launch_id, last.exited and last.exited.cause, last.restarts) == ("a", "killed", True)
    withdrawn = log_of(launched, exited, again, {"event": "withdrawn", "launch_id": "a"}).last_launch
    assert withdrawn is not None
    assert (withdrawn.restarts, withdrawn.withdrawn) == (False, True)
    assert log_of(*refused).last_launch is None


def test_the_end_of_a_run_that_was_started_again_is_not_the_last_one() -> None:
    log = log_of({"event": "launched"}, {"event": "exited", "cause": "killed"}, {"event": "launched"})
    assert log.last_end is None
    assert log.since(1).last_end is None
    assert type(log).of([event.record() for event in log[:2]]).last_end == log[1]


def test_a_log_is_parsed_once_until_it_is_written_to(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert read_events(log) == ()
    log.write_text('{"event": "aaa"}\n')
    first = read_events(log)
    assert read_events(log) is first
    with open(log, "a") as file:
        file.write('{"event": "bbb"}\n')
    assert [event.kind for event in read_events(log)] == ["aaa", "bbb"]
    draft = tmp_path / "draft"
    draft.write_text('{"event": "ccc"}\n{"event": "ddd"}\n')
    draft.rename(log)  # of the same size
    assert [event.kind for event in read_events(log)] == ["ccc", "ddd"]
    log.unlink()
    assert read_events(log) == ()


def test_a_large_log_is_not_kept_in_memory(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text('{"event": "aaa"}\n' * 70_000)
    first = read_events(log)
    assert len(first) == 70_000
    assert read_events(log) is not first
