"""Paths of a run, atomic writes, and line files that survive a crash."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.event_log import append_event, lines_of
from support.refusals import refuse
from support.refused import refused

from orchestrator.run_directory.rundir import RunDir, append_line, read_lines, write_atomically, write_refusal

fork = multiprocessing.get_context("fork")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    path = tmp_path / "runs" / "tiny" / "abcd1234"
    path.mkdir(parents=True)
    return RunDir(path)


def test_names(run: RunDir) -> None:
    assert (run.name, run.run_id) == ("tiny", "abcd1234")
    assert run.rank_log(3) == run.path / "logs" / "rank-00003.log"
    assert run.checkpoint(500) == run.path / "checkpoints" / "iter_0000500"
    assert run.exit_record("a", 12) == run.path / "exits" / "a" / "rank-00012.json"


def test_generations_are_numbered_not_sorted_by_name(run: RunDir) -> None:
    with refused("not_a_run_directory", "resolved.json"):
        run.resolved()
    for number in range(1, 12):
        path = run.next_resolved()
        assert path.name == ("resolved.json" if number == 1 else f"resolved.{number}.json")
        path.touch()
    (run.path / "resolved.old.json").touch()
    assert run.resolved().name == "resolved.11.json"
    (run.path / "resolved.4.json").unlink()
    run.next_resolved().touch()
    assert run.resolved().name == "resolved.12.json", "where one is gone, the next is still the newest"
    (run.path / f"resolved.{10**18 - 1}.json").touch()
    assert run.next_resolved().name == "resolved.13.json", "none that the next could not follow"


def test_checkpoints_are_sorted_by_iteration(run: RunDir) -> None:
    assert run.checkpoint_dirs() == []
    for name in ("iter_10000000", "iter_0000500", "iter_x", "iter_5", ".iter_0000001"):
        (run.checkpoints / name).mkdir(parents=True)
    assert [iteration for iteration, _ in run.checkpoint_dirs()] == [500, 10_000_000]


def test_events_have_time_and_kind(run: RunDir) -> None:
    append_event(run, "launched", launch_id="a")
    (event,) = lines_of(run)
    assert (event["event"], event["launch_id"]) == ("launched", "a")
    assert event["time"] > 1e9


@given(garbage=st.binary(max_size=40).filter(lambda data: b"\n" not in data and b"\r" not in data))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_line_costs_itself_only(run: RunDir, garbage: bytes) -> None:
    run.events_file.unlink(missing_ok=True)
    append_event(run, "first")
    with open(run.events_file, "ab") as file:
        file.write(b'{"event": "tor' + garbage)
    append_event(run, "second")
    assert [event["event"] for event in lines_of(run)] == ["first", "second"]


def test_what_is_no_object_is_left_out(run: RunDir) -> None:
    run.events_file.write_bytes(b"[]\nnull\n\n\xff\xfe\n" + b"[" * 100_000 + b'\n{"event": "x"}\n')
    assert lines_of(run) == [{"event": "x"}]


def _append_many(path: Path, writer: int, count: int) -> None:
    for number in range(count):
        append_line(path, {"writer": writer, "number": number, "filler": "x" * (number % 700)})


def test_racing_writers_lose_nothing(run: RunDir) -> None:
    children = [fork.Process(target=_append_many, args=(run.events_file, writer, 200)) for writer in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    lines = list(read_lines(run.events_file))
    for writer in range(4):
        assert [line["number"] for line in lines if line["writer"] == writer] == list(range(200))


def test_disk_that_takes_a_part_only_raises(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match="No space left") as caught:
        append_event(run, "first")
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    append_event(run, "second")
    assert [event["event"] for event in lines_of(run)] == ["second"]


NAME_ANOTHER = "name another folder, or get permission to write to this one"


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (errno.EACCES, NAME_ANOTHER),
        (errno.EROFS, NAME_ANOTHER),
        (errno.ENOSPC, "make room there, or name another folder"),
    ],
)
def test_a_refused_write_is_told_by_its_folder(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, code: int, way_out: str
) -> None:
    refuse(monkeypatch, "builtins.open", code)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        write_atomically(run.job_yaml, "")
    assert caught.value.filename == str(run.job_yaml), "not the temporary one"
    refusal = write_refusal(caught.value)
    assert str(refusal) == f"nothing can be written in {run.path}: {os.strerror(code)}; {way_out}"


def test_other_refusals_are_not_about_writing(run: RunDir) -> None:
    run.job_yaml.touch()
    for error in (
        PermissionError(errno.EACCES, "Permission denied", str(run.job_yaml)),  # ours to write: it was something else
        PermissionError(errno.EPERM, "Operation not permitted"),
        IsADirectoryError(errno.EISDIR, "Is a directory", str(run.path)),
        OSError(errno.ENOSPC, "No space left on device"),
    ):
        assert write_refusal(error) is None


def test_failed_write_leaves_the_old_file_and_nothing_else(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.path / "resolved.json"
    write_atomically(path, json.dumps({"a": 1}))

    refuse(monkeypatch, "os.fsync", OSError(errno.EIO, "I/O error"))
    with pytest.raises(OSError, match="I/O error") as caught:
        write_atomically(path, "new")
    assert caught.value.filename == str(path), "what is said to a person names the place"
    assert path.read_text() == '{"a": 1}'
    assert os.listdir(run.path) == ["resolved.json"]


@given(content=st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(run: RunDir, content: bytes) -> None:
    write_atomically(run.path / "file", content)
    assert (run.path / "file").read_bytes() == content
