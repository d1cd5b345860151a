"""What a reader of a run directory opens, and what it makes of what is in there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import NoneType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import after

from orchestrator.files.stored_files import (
    MOST_LINE_BYTES,
    NotStoredError,
    count,
    lines_from,
    listed,
    moment,
    number,
    open_stored,
    open_to_append,
    parse_json,
    parse_line,
    printable,
    read_json_lines,
    read_object,
    read_stored,
    size_of,
)
from orchestrator.run_directory.events.log import read_events
from orchestrator.tracking.measurements.metrics import MetricTail, read_records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory that is reached through a link, as a runs folder on another disk is."""
    (tmp_path / "disk" / "run" / "logs").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    return tmp_path / "runs" / "run"


def test_what_lies_below_is_read(folder: Path) -> None:
    (folder / "logs" / "a").write_text("one")
    (folder / "also").symlink_to("logs")
    (folder / "latest").symlink_to(folder / "also" / "a")
    for path in (folder / "logs" / "a", folder / "also" / "a", folder / "latest"):
        assert read_stored(path, folder) == b"one"
    assert listed(folder / "also", folder) == ["a"]


def test_no_link_leads_out(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("{}")
    (tmp_path / "disk" / "secret").write_text("{}")
    (folder / "file").symlink_to(outside / "secret")
    (folder / "relative").symlink_to("../secret")
    (folder / "all").symlink_to(outside)
    (folder / "up").symlink_to("..")
    (folder / "itself").symlink_to("../run")
    (folder / "logs" / "chain").symlink_to("../all/secret")
    names = ("file", "relative", "all/secret", "up/secret", "logs/chain", "logs/../../secret", "../secret", "logs/..")
    for path in (folder / name for name in names):
        with pytest.raises(NotStoredError):
            open_stored(path, folder)
        with pytest.raises(NotStoredError):
            open_to_append(path, folder)
        assert read_object(path, folder) == {}
    assert listed(folder / "all", folder) == listed(folder / "up", folder) == []
    with pytest.raises(NotStoredError):
        open_stored(outside / "secret", folder)
    assert (outside / "secret").read_text() == "{}"


def test_a_link_that_is_put_there_meanwhile_leads_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at what a path leads to and the opening of that."""
    (folder / "target").write_text("one")
    (folder / "link").symlink_to("target")
    secret = folder.parent / "secret"
    secret.write_text("two")

    def swap(found: str, path: Path, *, strict: bool = False) -> None:
        if Path(path).name == "link":
            (folder / "target").unlink()
            (folder / "target").symlink_to(secret)

    after(monkeypatch, "os.path.realpath", swap)
    with pytest.raises(OSError, match="symbolic links"):
        open_stored(folder / "link", folder)


def test_only_regular_files(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "zeros").symlink_to("/dev/zero")
    (folder / "round").symlink_to("round")
    (folder / "nowhere").symlink_to("gone")
    for name in ("fifo", "zeros", "round", "nowhere", "logs", "gone", "a\0b", "x" * 5000, "\ud800"):
        with pytest.raises(OSError, match=r"."):
            open_stored(folder / name, folder)
    for name in ("fifo", "zeros", "logs"):
        with pytest.raises(OSError, match=r"."):
            open_to_append(folder / name, folder)
    assert size_of(folder / "fifo") == size_of(folder / "logs") == size_of(folder / "gone") == 0
    with open_to_append(folder / "new", folder) as file:
        file.write(b"1")
    assert (folder / "new").read_text() == "1"


def test_reads_are_bounded(folder: Path) -> None:
    large = folder / "large"
    large.write_bytes(b'{"event": "first", "time": 1}\n')
    os.truncate(large, 1 << 40)
    with open(large, "ab") as file:
        file.write(b'\n{"event": "last", "time": 2}\n')
    with pytest.raises(NotStoredError):
        read_stored(large, folder)
    assert read_object(large, folder) == {}
    assert [event.kind for event in read_events(large)] == ["first", "last"]


def test_a_line_that_is_too_long_is_passed_over(folder: Path) -> None:
    """Also where it was never written, and would take hours to read."""
    log = folder / "metrics.jsonl"
    line = {"time": 1.0, "iteration": 1, "samples": 1, "tokens": 1, "values": {"train/loss": 1.0}}
    log.write_text(json.dumps(line) + "\n" + "x" * 3 * MOST_LINE_BYTES)
    os.truncate(log, 1 << 40)
    with open(log, "ab") as file:
        file.write(b"\n" + json.dumps({**line, "iteration": 2}).encode() + b"\n" + b"y" * 2 * MOST_LINE_BYTES)
    assert [metric.iteration for metric in read_records(log)] == [1, 2]
    assert MetricTail(log, log.stat().st_size - 9).poll() == []
    with open_stored(log, folder) as file:
        found = list(lines_from(file, 0, 1 << 41))
    assert [len(line) for line, _ in found] == [len(json.dumps(line)) + 1, 0, len(json.dumps(line)) + 1]
    with open_stored(log, folder) as file:
        assert len(list(lines_from(file, 0, 1))) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b"[" * 66 + b"]" * 66,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"\0" * 64,
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_json_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(content)
    assert parse_line(content) is None


def test_texts_hold_nothing_that_steers_a_terminal() -> None:
    hostile = {"\x1b[2Ja\x07": ["\ud800\x9b5n", "b\r\x1b]0;title\x07", "two\nlines\t\N{PILE OF POO}"]}
    sign = "\N{REPLACEMENT CHARACTER}"
    assert parse_json(json.dumps(hostile).encode()) == {
        f"a{sign}": [f"{sign}{sign}5n", f"b{sign}", "two\nlines\t\N{PILE OF POO}"]
    }
    assert parse_json(json.dumps(["\x7f\x9b"], ensure_ascii=False).encode()) == [sign * 2]


@given(st.text(st.characters()))
def test_whatever_is_printable_can_be_written(text: str) -> None:
    told = printable(text)
    told.encode()
    assert printable(told) == told
    assert not any(ord(each) < 32 and each not in "\n\t" for each in told)


values = st.none() | st.booleans() | st.text() | st.lists(st.integers()) | st.integers() | st.floats()
large = st.sampled_from([10**400, -(10**400), 2**62, 2**63, 1e11, 1e300])


@given(values | large)
def test_numbers_are_coerced(value: object) -> None:
    for found in (number(value), moment(value), count(value), number(value, 1.0, least=0.0, most=2.0)):
        assert found is None or abs(found) <= sys.float_info.max
    found = moment(value)
    assert found is None or 0 <= found <= 1e11
    assert number(value, 1.0, least=0.0, most=2.0) in (1.0, value)


def test_an_event_has_fields_of_their_types(folder: Path) -> None:
    log = folder / "events.jsonl"
    hostile = ("soon", 10**400, float("nan"), -1, [1], {"a": 1}, None, True)
    kinds = ("launched", "exited", "created", "first_step", "unheard of")
    fields = (
        "time",
        "iteration",
        "launch_id",
        "job_id",
        "pid",
        "code",
        "evidence",
        "seconds",
        "nodes",
    )
    log.write_text(
        "".join(json.dumps({"event": kind} | dict.fromkeys(fields, v)) + "\n" for kind in kinds for v in hostile)
    )
    events = read_events(log)
    assert len(events) == len(kinds) * len(hostile)
    for event in events:
        assert isinstance(event.time, float | None)
        numbers = (event.at, getattr(event, "pid", None), getattr(event, "code", None))
        assert all(type(each) in (int, NoneType) for each in numbers)
        assert isinstance(event.of_launch, str | None)
        assert isinstance(event.of_job, str | None)
        texts = [*(getattr(event, "evidence", None) or ()), *(getattr(event, "nodes", None) or ())]
        assert all(isinstance(each, str) for each in texts)
        assert isinstance(getattr(event, "seconds", None), dict | None)
    log.write_text('{"event": null}\n{"event": []}\n{"time": 1}\n[]\n{"event": "created"}\n')
    assert [event.said() for event in read_events(log)] == [{"event": "created"}]
    assert list(read_json_lines(folder / "gone", folder)) == []
