"""The index of a folder's runs: it says what reading them says, whatever happened to them or to itself."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from baseline.packing import kept, unpack

from orchestrator.launch.runs import all_runs
from orchestrator.review.filters.listing import summaries_in
from orchestrator.review.index import RunIndex
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.stored_index.index_file import Entry, read_index, write_index
from orchestrator.review.stored_index.signatures import signatures_in
from orchestrator.review.summary import summarize_each
from orchestrator.run_directory.events.labels import Archived, Labels, Renamed, Tagged
from orchestrator.run_directory.labels import write_label
from orchestrator.run_directory.rundir import RunDir, append_line

FILLERS = 40
"""Runs that nothing happens to: an index of few runs is not written."""
LONG_AGO = 1.6e9


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    for name in ("dp", "interrupted", "gpt", "sweep"):
        unpack(kept(name), folder)
    spec = (all_runs(folder / "runs")[0].path / "resolved.json").read_text()
    for number in range(FILLERS):
        run = RunDir(folder / "runs" / "filler" / f"{number:08x}")
        run.path.mkdir(parents=True)
        (run.path / "resolved.json").write_text(spec)
        append_line(run.events_file, {"event": "created", "time": LONG_AGO + number, "run_id": run.run_id})
    return folder / "runs"


@pytest.fixture
def folder(few: Path, tmp_path: Path) -> Path:
    copy = shutil.copytree(few, tmp_path / "runs", symlinks=True)
    for run in all_runs(copy):
        age(run)
    return copy


def age(run: RunDir) -> None:
    """Make what it has some time old: what was changed a moment ago is not kept."""
    for path in (run.path, *run.path.rglob("*")):
        if not path.is_symlink():
            changed = path.stat().st_mtime_ns if path.stat().st_mtime < time.time() - 100 else time.time_ns() - 10**10
            os.utime(path, ns=(changed, changed))


def chosen(folder: Path) -> list[RunDir]:
    """Those that something may happen to."""
    return [run for run in all_runs(folder) if run.name != "filler"]


def index_of(folder: Path) -> Path:
    return folder / ".cache" / f"runs-{os.getuid()}.index"


def truth(folder: Path, known: Iterable[RunSummary] = ()) -> list[RunSummary]:
    """What reading every run says. `known`: of those to which nothing has happened since."""
    said = {run.run.path: run for run in known}
    read = summarize_each([run for run in all_runs(folder) if run.path not in said], with_disk_use=True)
    return sorted([*said.values(), *read], key=lambda run: (run.created or 0.0, run.run.path))


def same(found: list[RunSummary], expected: list[RunSummary]) -> bool:
    """With the specs as plain mappings: those of an index are differences."""
    return [replace(run, spec={**run.spec}) for run in found] == [replace(run, spec={**run.spec}) for run in expected]


def written(folder: Path) -> bytes:
    summaries_in(folder)
    return index_of(folder).read_bytes()


def test_it_says_what_the_runs_say(folder: Path) -> None:
    expected = truth(folder)
    assert same(summaries_in(folder), expected)
    assert len(read_index(folder)) == sum(run.is_settled for run in expected) >= 4 + FILLERS
    assert same(summaries_in(folder), expected)


def test_each_field_comes_back(folder: Path) -> None:
    """Also those that runs rarely have."""
    plain = next(run for run in truth(folder) if run.is_settled)
    labels = Labels("shown", ("before",), ("a", "b"), "a note", True)
    values = {"train/loss": float("inf"), "own/metric": -1.5}
    odd = replace(
        plain, labels=labels, tags=("a", "b", "team:nlp"), values=values, spark=(1.0, 2.5), goodput=0.5, lost_steps=3,
        message="a\ttab, a \"quote\" and é", problem="why", from_run="gpt/12345678", from_iteration=7, unsent=9,
    )  # fmt: skip
    path = str(plain.run.path)
    entry = Entry(odd, signatures_in(folder, {})[path])
    others = {str(run.run.path): Entry(run, signatures_in(folder, {})[str(run.run.path)]) for run in truth(folder)}
    assert write_index(folder, {**others, path: entry}, {})
    found = read_index(folder)[path]
    assert found.signature == entry.signature
    assert same([found.summary], [odd])


def started(run: RunDir) -> None:
    """A resume: its launcher has said so, and nothing more."""
    launched = next(
        line for line in map(json.loads, run.events_file.read_text().splitlines()) if line["event"] == "launched"
    )
    append_line(run.events_file, {**launched, "launch_id": f"{time.time()}", "time": time.time()})


def replaced(run: RunDir) -> None:
    """Another run in its place."""
    others = [each for each in chosen(run.path.parent.parent) if each != run]
    shutil.rmtree(run.path)
    shutil.copytree(others[0].path, run.path, symlinks=True)


def lost_checkpoint(run: RunDir) -> None:
    for _, path in run.checkpoint_dirs()[:1]:
        shutil.rmtree(path)


def renamed(run: RunDir) -> None:
    other = run.path.parent.with_name(f"{run.name}-moved")
    other.mkdir(exist_ok=True)
    if not (other / run.run_id).exists():
        run.path.rename(other / run.run_id)


def copied(run: RunDir) -> None:
    shutil.copytree(run.path, run.path.with_name(f"{random.getrandbits(32):08x}"), symlinks=True)


def measured(run: RunDir) -> None:
    values = {"train/loss": 9.0}
    append_line(run.metrics_file, {"time": 1.0, "iteration": 99, "samples": 1, "tokens": 1, "values": values})


def changed_spec(run: RunDir) -> None:
    spec = json.loads(run.resolved().read_bytes())
    run.next_resolved().write_text(json.dumps(spec | {"optimizer": spec["optimizer"] | {"lr": random.random()}}))


CHANGES: tuple[Callable[[RunDir], object], ...] = (
    started, replaced, lost_checkpoint, renamed, copied, measured, changed_spec,
    lambda run: shutil.rmtree(run.path),
    lambda run: write_label(run.path, Tagged(tags=("best",))),
    lambda run: write_label(run.path, Renamed(to="other", former=run.name)),
    lambda run: write_label(run.path, Archived()),
    lambda run: (run.path / "resolved.json").unlink(),
    lambda run: None,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_runs_is_seen(folder: Path, seed: int) -> None:
    """By other programs, between any two lists: resumed, deleted, renamed, replaced, labelled, damaged, new."""
    random.seed(seed)
    summaries_in(folder)
    looking = RunIndex(folder)
    fillers = [run for run in truth(folder) if run.run.name == "filler"]
    for _ in range(12):
        for _ in range(random.randrange(1, 3)):
            runs = chosen(folder)
            if len(runs) > 1:
                random.choice(CHANGES)(random.choice(runs))
        for run in chosen(folder) if random.random() < 0.5 else ():
            age(run)
        expected = truth(folder, fillers)
        assert same(summaries_in(folder), expected)
        looking.look()
        assert sorted(run.key for run in looking.runs) == sorted(run.key for run in expected)
        again = RunIndex(folder)
        again.look()
        assert same(sorted(again.runs, key=lambda run: (run.created or 0.0, run.run.path)), expected)


def test_a_torn_or_altered_index_is_none(folder: Path) -> None:
    whole = written(folder)
    for end in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        index_of(folder).write_bytes(whole[:end])
        assert read_index(folder) == {}
    for place in range(0, len(whole), len(whole) // 50):
        index_of(folder).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert read_index(folder) == {}
    assert same(summaries_in(folder), truth(folder))
    assert index_of(folder).read_bytes() == whole


def with_content(folder: Path, content: bytes) -> None:
    """An index that somebody has made up, with a right checksum."""
    version = index_of(folder).read_bytes().partition(b"\n")[0].rsplit(b" ", 2)[0]
    index_of(folder).write_bytes(version + f" {len(content)} {zlib.crc32(content):08x}\n".encode() + content)


def test_a_made_up_index_harms_nobody(folder: Path) -> None:
    content = written(folder).partition(b"\n")[2]
    lines = content.split(b"\n")
    number = next(number for number, line in enumerate(lines) if b"\t" in line)
    told, spec, record = lines[number].split(b"\t")
    values = json.loads(told)
    wrong: list[Any] = [
        "../..",
        None,
        -1,
        1e400,
        [[]],
        {"a": "b"},
        "x" * 5000,
        1 << 80,
        True,
        [None] * 5,
        "completed\x1b[31m",
    ]
    for place in range(len(values)):
        for value in wrong:
            made_up = json.dumps([*values[:place], value, *values[place + 1 :]]).encode()
            with_content(folder, b"\n".join([*lines[:number], b"\t".join((made_up, spec, record))]))
            for entry in read_index(folder).values():
                assert entry.summary.run.path.parent.parent == folder
                assert "\x1b" not in repr(entry.summary)
    for text in (b"[" * 100_000, b"\0" * 1000, b"{}\t{}\t{}", b"\xff\t\xff\t\xff", b"null\t1\t2", b"[]\n" * 1000):
        with_content(folder, text)
        assert read_index(folder) == {}
    with_content(folder, b"\n".join([*lines[:number], b"\t".join((told, b"[" * 100_000, b"no JSON"))]))
    for entry in read_index(folder).values():
        dict(entry.summary.spec)


def test_links_pipes_and_files_of_others_are_not_read(folder: Path, tmp_path: Path) -> None:
    whole = written(folder)
    index_of(folder).unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    index_of(folder).symlink_to(tmp_path / "elsewhere")
    assert read_index(folder) == {}
    index_of(folder).unlink()
    os.mkfifo(index_of(folder))
    assert read_index(folder) == {}
    index_of(folder).unlink()
    index_of(folder).write_bytes(whole)
    assert read_index(folder) != {}
    if os.getuid() == 0:  # others cannot give files away
        os.chown(index_of(folder), 4711, -1)
        assert read_index(folder) == {}


def test_a_folder_that_nobody_may_write_to(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (folder / ".cache").write_text("in the way")
    expected = truth(folder)
    assert same(summaries_in(folder), expected)
    assert len([*(tmp_path / "home").rglob("*.index")]) == 1
    assert read_index(folder) != {}
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(summaries_in(folder), expected), "and no cache"


def test_goodput_is_found_once(folder: Path) -> None:
    """Also by the dashboard that starts next; but of a run that changed it is none."""
    trained = chosen(folder)[0]
    for number in range(FILLERS):
        run = RunDir(folder / trained.name / f"{number:08x}")
        run.path.mkdir()
        for path in (trained.path / "resolved.json", trained.events_file, trained.metrics_file):
            shutil.copy(path, run.path)
        age(run)
    first = RunIndex(folder)
    first.look()
    first.find_goodput()
    known = {run.key: run.goodput for run in first.runs if run.goodput is not None}
    assert len(known) >= FILLERS
    for run in all_runs(folder):  # whoever found it out again would find another
        kept = run.events_file.stat()
        run.events_file.write_text("\n" * kept.st_size)
        os.utime(run.events_file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    second = RunIndex(folder)
    second.look()
    second.find_goodput()
    assert {run.key: run.goodput for run in second.runs if run.goodput is not None} == known
    for run in all_runs(folder):
        write_label(run.path, Tagged(tags=("changed",)))
        age(run)
    second.look()
    found = read_index(folder)
    assert len(found) >= FILLERS
    assert {entry.summary.goodput for entry in found.values()} == {None}


def test_several_writers_at_once(folder: Path) -> None:
    expected = truth(folder)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(8):
            known = {str(run.run.path): Entry(run, found[str(run.run.path)]) for run in expected}
            write_index(folder, dict(random.sample([*known.items()], len(known) - 1)), {})
            if not same(summaries_in(folder), expected):
                wrong.append("differs")

    found = signatures_in(folder, {})
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [path.name for path in (folder / ".cache").iterdir() if path.suffix != ".index" and path.is_file()] == []


def test_what_changed_this_moment_is_not_kept(folder: Path) -> None:
    """A second change may have the same time."""
    run = chosen(folder)[0]
    write_label(run.path, Tagged(tags=("best",)))
    summaries_in(folder)
    found = read_index(folder)
    assert str(run.path) not in found
    assert len(found) >= FILLERS


def test_few_changes_are_not_worth_writing_it(folder: Path) -> None:
    before = written(folder)
    for run in chosen(folder)[:2]:
        write_label(run.path, Tagged(tags=("best",)))
        age(run)
    assert [run.tags for run in summaries_in(folder) if "best" in run.tags] == [("best",)] * 2
    assert index_of(folder).read_bytes() == before
    shutil.rmtree(folder / "filler")
    assert written(folder) != before
    shutil.rmtree(folder / ".cache")
    summaries_in(folder)
    assert not index_of(folder).exists()
