"""Commit markers: what counts as a checkpoint, and what is found when one is torn or damaged."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.event_log import append_event

from orchestrator.run_directory.checkpoints.commit_markers import (
    committed,
    file_record,
    read_commit,
    verify,
    write_commit,
)
from orchestrator.run_directory.checkpoints.newest import latest_valid, passed_over
from orchestrator.run_directory.checkpoints.retention import oldest_kept, outdated, unfinished
from orchestrator.run_directory.rundir import RunDir

CONTENT = {"__0_0.distcp": b"weights" * 1000, "common.pt": b"common", "sub/metadata": b""}


def make_checkpoint(run: RunDir, iteration: int) -> Path:
    path = run.checkpoint(iteration)
    for name, content in CONTENT.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    files = {name: file_record(path / name) for name in CONTENT}
    write_commit(path, iteration=iteration, consumed_samples=8 * iteration, files=files, config_hash="abc")
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "job" / "abcd1234")


def test_written_commit_reads_back(run: RunDir) -> None:
    commit = read_commit(make_checkpoint(run, 5))
    assert commit is not None
    assert (commit.iteration, commit.consumed_samples) == (5, 40)
    assert commit.bytes == sum(len(content) for content in CONTENT.values())
    assert commit.details == {"config_hash": "abc"}
    assert verify(commit.path) == []


def test_folder_without_marker_is_no_checkpoint(run: RunDir) -> None:
    make_checkpoint(run, 5)
    torn = make_checkpoint(run, 10)
    (torn / "commit.json").unlink()
    assert [commit.iteration for commit in committed(run)] == [5]
    assert verify(torn) == [f"{torn} has no commit.json: it was never finished"]


def test_damage_is_named_with_file_and_what(run: RunDir) -> None:
    path = make_checkpoint(run, 5)
    (path / "__0_0.distcp").write_bytes(b"weights" * 999)
    (path / "common.pt").write_bytes(b"commom")
    (path / "sub/metadata").unlink()
    assert verify(path) == [
        f"{path}/__0_0.distcp is damaged: it has 6993 bytes instead of 7000",
        f"{path}/common.pt is damaged: its CRC-32 is 7ce521eb instead of e5ec7051",
        f"{path}/sub/metadata is missing",
    ]
    assert len(verify(path, contents=False)) == 2


def test_latest_valid_skips_what_is_not_whole_and_says_so(run: RunDir) -> None:
    whole = make_checkpoint(run, 5)
    (make_checkpoint(run, 10) / "common.pt").write_bytes(b"x")
    (make_checkpoint(run, 15) / "commit.json").write_text("{")
    said: list[tuple[str, str]] = []
    commit = latest_valid(run, skipped=lambda path, message: said.append((path.name, message)))
    assert commit is not None
    assert commit.path == whole
    assert [name for name, _ in said] == ["iter_0000015", "iter_0000010"]
    assert "is not a commit marker" in said[0][1]
    assert "has 1 bytes instead of 6" in said[1][1]


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_what_is_kept_does_not_depend_on_later_ones(run: RunDir, keep_last: int) -> None:
    """A run that fell back behind damaged checkpoints keeps what it saves now, and thins out only up to there."""
    for iteration in (60, 70, 80, 90, 100, 800, 900, 1000):
        make_checkpoint(run, iteration)
    gone = [commit.iteration for commit in outdated(committed(run), 100, keep_last, None)]
    assert gone == [60, 70, 80, 90, 100][:-keep_last]
    every = [commit.iteration for commit in outdated(committed(run), 100, keep_last, 20)]
    assert every == [iteration for iteration in gone if iteration % 20]


def test_damaged_ones_are_not_counted_among_those_that_are_kept(run: RunDir) -> None:
    for iteration in (60, 77, 78, 80, 84):
        make_checkpoint(run, iteration)
    commits = committed(run)

    def gone(saved: int, keep_last: int, keep_every: int | None = None) -> list[int]:
        return [commit.iteration for commit in outdated(commits, saved, keep_last, keep_every, {60, 78})]

    assert gone(84, 4) == []
    assert gone(84, 3) == [60]
    assert gone(84, 2) == [60, 77, 78]
    assert gone(84, 2, keep_every=60) == [77, 78]
    assert gone(80, 2) == [60]


def test_only_what_surely_has_no_marker_is_unfinished(run: RunDir) -> None:
    """And only what is older than all that are kept: of a folder that is copied here, the marker may be on its way."""
    for iteration in (5, 10, 15, 20, 25, 30):
        make_checkpoint(run, iteration)
    for iteration in (10, 25):
        (run.checkpoint(iteration) / "commit.json").unlink()
    (run.checkpoint(15) / "commit.json").write_text("{")
    away = run.path / "away"
    run.checkpoint(5).rename(away)
    run.checkpoint(5).symlink_to(away)
    (away / "commit.json").unlink()
    run.checkpoint(12).write_text("no folder")
    draft = run.checkpoints / f".{run.checkpoint(11).name}.000001.draft"
    draft.mkdir()
    oldest = oldest_kept(committed(run), 30, 2)
    assert (oldest, unfinished(run, oldest)) == (20, [run.checkpoint(10)])
    assert unfinished(run, oldest_kept(committed(run), 30, 3)) == [], "as long as fewer are whole"
    assert unfinished(run, oldest_kept(committed(run), 30, 2, {20})) == []


def test_what_was_passed_over_is_told_until_it_is_whole_again(run: RunDir) -> None:
    run.path.mkdir(parents=True)
    for iteration in (78, 80, 90):
        append_event(run, "checkpoint_skipped", path=str(run.checkpoint(iteration)), message=f"{iteration} is damaged")
    append_event(run, "checkpoint_skipped", path="elsewhere", message="not a checkpoint")
    assert passed_over(run.events()) == {78: "78 is damaged", 80: "80 is damaged", 90: "90 is damaged"}
    append_event(run, "checkpoint_saved", iteration=80)
    append_event(run, "resumed", iteration=90)
    assert passed_over(run.events()) == {78: "78 is damaged"}


def test_run_without_checkpoints(run: RunDir) -> None:
    assert committed(run) == []
    assert latest_valid(run) is None


@given(content=st.one_of(st.binary(max_size=60), st.sampled_from([b"[]", b"{}", b"null", b'{"iteration":{}}'])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_marker_is_read_without_a_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "commit.json").write_bytes(content)
    assert read_commit(tmp_path) is None
    assert "is not a commit marker" in verify(tmp_path)[0]


@pytest.mark.parametrize("name", ["../Makefile", "tokenizer/../../../Makefile", "/dev/zero", "", ".", "a//b", "a\0"])
def test_a_marker_that_leads_out_of_its_folder_is_none(run: RunDir, name: str) -> None:
    """It may come from anywhere, and what it names is read, copied and written under the same name."""
    path = make_checkpoint(run, 5)
    record = json.loads((path / "commit.json").read_text())
    record["files"][name] = {"bytes": 0, "crc32": 0}
    (path / "commit.json").write_text(json.dumps(record))
    assert read_commit(path) is None
    told = json.dumps(name.replace("\0", "\N{REPLACEMENT CHARACTER}"))
    assert verify(path) == [f"{path}/commit.json is damaged: it names {told}, which is not a file in this folder"]


def test_what_is_no_regular_file_is_not_read(run: RunDir) -> None:
    """Reading of a pipe that nobody writes to would not end."""
    path = make_checkpoint(run, 5)
    (path / "common.pt").unlink()
    os.mkfifo(path / "common.pt")
    assert verify(path) == [f"{path}/common.pt is damaged: it is not a regular file"]


@given(name=st.sampled_from(sorted(CONTENT)), position=st.integers(0, 6999), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
def test_any_flipped_bit_is_found(run: RunDir, name: str, position: int, bit: int) -> None:
    path = make_checkpoint(run, 5)
    content = bytearray(CONTENT[name])
    if not content:
        return
    content[position % len(content)] ^= 1 << bit
    (path / name).write_bytes(bytes(content))
    assert len(verify(path)) == 1
