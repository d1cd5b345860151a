"""What a page asks for while a run goes on: only what is new, and everything where that would be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.review.charts.catalogue import CHARTS, metric_chart
from orchestrator.review.charts.changes import (
    Position,
    first_new_step,
    is_current,
    new_points,
    position_of,
    positions_text,
    read_positions,
)
from orchestrator.review.charts.curves import View, figure_of
from orchestrator.review.charts.series import GrowingSeries
from orchestrator.run_directory.rundir import RunDir

ACCURACY = metric_chart("train/accuracy")


def line(step: int, **values: float) -> str:
    record = {"time": 1e9 + step, "iteration": step, "samples": step, "tokens": 64 * step}
    return json.dumps({**record, "values": {f"train/{key}": value for key, value in values.items()}}) + "\n"


def written(folder: Path, text: str) -> RunDir:
    run = RunDir(folder)
    with run.metrics_file.open("a") as file:
        file.write(text)
    return run


def curves(chart: Any, growing: GrowingSeries, view: View) -> list[tuple[list[Any], list[Any]]]:
    figure = figure_of(chart, {"run": growing.refresh()}, view)
    return [(trace["x"], trace["y"]) for trace in figure["data"] if "meta" not in trace]


def test_nothing_new_is_told_by_two_sizes_and_a_torn_line_is_nothing(tmp_path: Path) -> None:
    run = written(tmp_path, line(1, loss=3.0))
    series = GrowingSeries(run.metrics_file).refresh()
    at = position_of(run, series)
    assert is_current(run, at)
    written(tmp_path, '{"iteration": 2')
    assert not is_current(run, at)
    assert first_new_step(run, at) == 1


def test_positions_of_several_runs_in_an_address() -> None:
    positions = [Position(1, 2, 3, 4), Position(1 << 52, 0, 0, 0)]
    assert read_positions(positions_text(positions)) == positions
    for text in (
        "",
        ",",
        "1-2-3",
        "1-2-3-4-5",
        "1-2-3-x",
        "-1-2-3-4",
        "1-2-3-4,",
        f"{'9' * 5000}-0-0-0",
        "\u0661-2-3-4",
    ):
        assert read_positions(text) == []


def test_steps_that_are_undone_and_logs_that_are_replaced_are_drawn_anew(tmp_path: Path) -> None:
    run = written(tmp_path, line(1, loss=3.0) + line(2, loss=2.0))
    at = position_of(run, GrowingSeries(run.metrics_file).refresh())
    written(tmp_path, line(2, accuracy=0.5))  # an evaluation of the step that is there
    assert first_new_step(run, at) == 2
    written(tmp_path, line(2, loss=2.5))
    assert first_new_step(run, at) is None
    run.metrics_file.write_text(line(1, loss=1.0))
    assert first_new_step(run, at) is None
    run.metrics_file.write_text("".join(line(step, loss=1.0) for step in range(3000)))
    assert first_new_step(run, at) is None, "a page that is far behind"


@given(
    count=st.integers(1, 30),
    seen=st.integers(1, 30),
    smoothing=st.sampled_from([0.0, 0.6]),
    x=st.sampled_from(["steps", "tokens", "time"]),
)
def test_a_figure_with_what_was_added_is_the_figure_of_all(
    tmp_path_factory: Any, count: int, seen: int, smoothing: float, x: Any
) -> None:
    folder, view = tmp_path_factory.mktemp("run"), View(x, smoothing)
    run = written(folder, "".join(line(step, loss=1 / step, accuracy=step) for step in range(1, seen + 1)))
    growing = GrowingSeries(run.metrics_file)
    before = {chart.name: curves(chart, growing, view) for chart in (CHARTS["loss"], ACCURACY)}
    at = position_of(run, growing.series)
    written(folder, "".join(line(step, loss=1 / step, accuracy=step) for step in range(seen + 1, seen + count + 1)))
    since = first_new_step(run, at)
    assert since is not None
    added = new_points([CHARTS["loss"], ACCURACY], growing.refresh(), view, since)
    for chart in (CHARTS["loss"], ACCURACY):
        for (xs, ys), part, (every_x, every_y) in zip(
            before[chart.name], added[chart.name], curves(chart, growing, view), strict=True
        ):
            kept = [place for place, each in enumerate(xs) if each < part["x"][0]]
            assert [xs[place] for place in kept] + part["x"] == every_x
            assert [ys[place] for place in kept] + part["y"] == every_y
