"""The runs of a folder: what cannot be read hides nothing else, and what is at rest is left alone."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import append_event
from support.limits import set_limits
from support.refusals import before, refuse
from support.training import tiny_job

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.review.cache import Cache
from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.review.charts.curves import View
from orchestrator.review.index import RunIndex
from orchestrator.review.series_cache import SeriesCache
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog


def made(folder: Path, name: str = "small", steps: int = 0) -> RunDir:
    run = create_run(tiny_job(name), f"name: {name}\n", folder, CodeState({}, b""))
    measure(run, 1, steps)
    return run


def measure(run: RunDir, first: int, last: int) -> None:
    log = MetricLog(run, check=lambda: None)
    for step in range(first, last + 1):
        log.append(step, 8 * step, 64 * step, {"train/loss": float(step), "train/lr": 1.0}, measured=1000.0 + step)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def refusing(monkeypatch: pytest.MonkeyPatch, function: str, at: Path, number: int) -> None:
    """From now on the system answers this error to what is asked about a path, and all that is in it."""
    refuse(
        monkeypatch,
        f"os.{function}",
        number,
        lambda path=".", *rest, **named: isinstance(path, str | Path) and Path(path).is_relative_to(at),
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_run_that_nothing_can_be_asked_about_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kept, refused = made(tmp_path, "kept"), made(tmp_path, "refused")
    refusing(monkeypatch, "stat", refused.path, number)
    refusing(monkeypatch, "lstat", refused.path, number)
    index = RunIndex(tmp_path)
    index.look()
    assert [run.key for run in index.runs] == [f"{kept.name}/{kept.run_id}"]


def test_a_folder_that_goes_while_it_is_listed_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = made(tmp_path, "kept"), made(tmp_path, "gone")
    refusing(monkeypatch, "listdir", gone.path.parent, errno.ENOENT)
    index = RunIndex(tmp_path)
    index.look()
    assert [run.run.path for run in index.runs] == [kept.path]


def test_looks_go_on_after_one_that_failed_and_say_since_when_nothing_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, between_looks_at_runs=0.01)
    made(tmp_path, "first")
    index = RunIndex(tmp_path)
    begun = time.time()
    index.start()
    try:
        until(lambda: len(index.runs) == 1)
        with monkeypatch.context() as broken:
            refusing(broken, "listdir", tmp_path, errno.ESTALE)
            until(lambda: index.behind is not None)
            assert index.behind is not None
            assert "OSError" in index.behind.problem
            assert begun <= index.behind.since <= time.time()
            assert len(index.runs) == 1
        made(tmp_path, "second")
        until(lambda: len(index.runs) == 2)
        until(lambda: index.behind is None)
    finally:
        index.stop()


def test_measurements_stay_as_they_are_while_they_are_drawn(tmp_path: Path) -> None:
    run = made(tmp_path, steps=3)
    index = RunIndex(tmp_path)
    seen: list[int] = []

    def read() -> None:
        with index.reading(run) as series:
            seen.append(len(series.iterations))

    with index.reading(run) as series:
        measure(run, 4, 6)
        other = threading.Thread(target=read)
        other.start()
        other.join(0.2)
        assert (len(series.iterations), seen) == (3, [])
    other.join()
    assert seen == [6]


def test_runs_at_rest_are_not_read_again_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path)
    index = RunIndex(tmp_path)
    read: list[RunDir] = []
    before(monkeypatch, "orchestrator.review.index.summarize_each", lambda runs, **_: read.extend(runs))
    for _ in range(3):
        index.look()
    assert index.runs[0].state == "created"
    assert len(read) == 1
    append_event(run, "launched", launch_id="a", host="elsewhere", pid=1, started=0.0, boot="b")
    index.look()
    assert len(read) == 2, "a change of its files is seen at once"
    set_limits(monkeypatch, between_looks_at_runs_at_rest=0.0)
    index.look()
    assert len(read) == 3


def test_charts_of_many_runs_read_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, bytes_of_series=0)
    runs = [made(tmp_path, f"run{number}", steps=4) for number in range(5)]
    index = RunIndex(tmp_path)
    read: list[RunDir] = []
    before(monkeypatch, "orchestrator.review.index.RunIndex.reading", lambda index, run: read.append(run))
    beside = SeriesCache(index)
    charts = [CHARTS["loss"], CHARTS["lr"]]
    for chart in charts * 2:
        for run in runs:
            [curve], _ = beside.curves(run, chart, View(), charts)
            assert curve.points["x"] == [1, 2, 3, 4]
    assert len(read) == len(runs)
    for _ in range(2):
        assert [beside.facts(run).values["tokens"] for run in runs] == [256.0] * 5
    assert len(read) == len(runs)
    assert SeriesCache(index).facts(runs[0]).values["tokens"] == 256.0
    measure(runs[0], 5, 5)
    assert beside.curves(runs[0], charts[0], View())[0][0].points["x"] == [1, 2, 3, 4, 5]
    assert beside.facts(runs[0]).values["tokens"] == 320.0


def test_what_is_kept_weighs_no_more_than_it_may() -> None:
    kept: Cache[str] = Cache(10)
    kept.put("a", "one", 4)
    kept.put("b", "two", 4)
    assert kept.get("a") == "one"
    kept.put("c", "three", 4)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == ("one", None, "three")
    kept.put("c", "more", 11)
    assert kept.get("c") is None
    kept.put("d", "four", 6)
    assert (kept.get("a"), kept.get("d")) == ("one", "four")
