"""Figures: what is drawn of which keys, in which part, and what is marked."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.review.charts.axes import XAxis
from orchestrator.review.charts.catalogue import CHARTS, chart_named, chart_of, charts_with, groups_of, metric_chart
from orchestrator.review.charts.curves import Reference, View, figure_of, keys_of, mode_of
from orchestrator.review.charts.marks import SIGNS, TICKS, legend_of
from orchestrator.review.charts.series import Series
from orchestrator.review.charts.timeline import Mark
from orchestrator.tracking.measurements.metrics import Metric


def series_of(*steps: int, key: str = "train/loss", start: float = 1000.0) -> Series:
    """Steps ten seconds apart, whose value is their number; 64 tokens each."""
    series = Series()
    series.add(Metric(start + 10 * n, step, 8, 64 * step, {key: float(step)}) for n, step in enumerate(steps))
    return series


def drawn(figure: dict[str, Any], kind: str | None = None) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if trace.get("meta") == kind]


def test_validation_by_source_and_parts_of_the_loss_are_in_its_chart_and_nothing_else() -> None:
    series = Series()
    keys = ["train/loss", "train/loss/mlm", "validation/loss", "validation/wiki/loss", "validation/wiki/loss/mlm"]
    others = ["validation/perplexity", "validation/wiki/perplexity", "train/loss_scale", "train/moe/z_loss"]
    series.add([Metric(0.0, 1, 1, 1, dict.fromkeys(others + keys, 1.0))])
    assert keys_of(CHARTS["loss"], series) == ["train/loss", "validation/loss", *sorted(keys[1:2] + keys[3:])]
    assert keys_of(CHARTS["loss_scale"], series) == ["train/loss_scale"]
    assert keys_of(CHARTS["experts"], series) == ["train/moe/z_loss"]


def test_charts_that_have_nothing_to_show_are_left_out_unless_every_run_will_have_them() -> None:
    values = {"train/moe/z_loss": 0.0, "train/skipped_steps": 0.0}
    assert [chart.name for chart in charts_with(values, None) if not chart.is_core] == ["experts"]
    assert "skipped" in {chart.name for chart in charts_with({"train/skipped_steps": 2.0}, None)}
    assert {"loss", "lr", "grad_norm"} <= {chart.name for chart in charts_with({}, None)}


def test_any_other_metric_is_a_chart_in_the_group_of_its_prefix() -> None:
    values = dict.fromkeys(["train/accuracy", "zebra/x", "validation/accuracy", "accuracy", "optimizer/norm"], 0.5)
    groups = {name: [chart.title for chart in charts] for name, charts in groups_of(charts_with(values))}
    assert list(groups) == ["train", "validation", "optimizer", "throughput", "zebra", "other"]
    assert groups["train"][-1] == "train/accuracy"
    assert groups["other"] == ["accuracy"]


@given(
    keys=st.lists(st.one_of(st.text(), st.sampled_from(["loss", "/loss", "../x", "</script>", "x" * 9999])), max_size=6)
)
def test_every_metric_has_a_chart_of_its_own_whatever_it_is_called(keys: list[str]) -> None:
    charts = [metric_chart(key) for key in dict.fromkeys(keys)]
    assert len({chart.name for chart in charts} | set(CHARTS)) == len(charts) + len(CHARTS)
    for chart in charts:
        assert len(chart.name) <= 120
        assert len(chart.title) <= 80
        assert chart_named(chart.name, keys) == chart
    assert chart_named("train/nothing", keys) is None


@pytest.mark.parametrize(("device", "unit"), [("cpu", "process"), ("NVIDIA H200", "GPU"), (None, "GPU")])
def test_a_chart_tells_the_speed_of_what_a_run_trains_on(device: str | None, unit: str) -> None:
    titles = [chart.title for chart in charts_with({"throughput/tflops_per_gpu": 1.0}, device)]
    assert f"TFLOP/s per {unit}" in titles
    assert chart_of("tflops", device).title == f"TFLOP/s per {unit}"


@pytest.mark.parametrize("x", get_args(XAxis))
def test_a_part_of_the_axis_is_drawn_to_its_edges(x: XAxis) -> None:
    series = series_of(*range(1, 101))
    series.flops_per_token = 6e9
    whole = drawn(figure_of(CHARTS["loss"], {"run": series}, View(x)))[0]["x"]
    part = drawn(figure_of(CHARTS["loss"], {"run": series}, View(x, within=(whole[40], whole[50]))))[0]
    assert part["x"] == whole[39:52]
    assert part["y"] == [float(step) for step in range(40, 53)]


def test_zooming_shows_points_that_were_thinned_out() -> None:
    series = series_of(*range(1, 100_001))
    whole = drawn(figure_of(CHARTS["loss"], {"run": series}))[0]
    part = drawn(figure_of(CHARTS["loss"], {"run": series}, View(within=(500, 600))))[0]
    assert len(whole["x"]) <= 1500
    assert part["x"] == list(range(499, 602))


@given(steps=st.lists(st.integers(1, 30), max_size=40), at=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_any_course_gives_json_and_what_counts_stands_apart_from_what_was_undone(
    steps: list[int], at: tuple[int, int]
) -> None:
    series = series_of(*steps)
    figure = figure_of(CHARTS["loss"], {"run": series}, View(within=(min(at), max(at)), smoothing=0.5))
    json.dumps(figure, allow_nan=False)
    for trace in drawn(figure_of(CHARTS["loss"], {"run": series})):
        assert trace["x"] == sorted({step for step in steps if step <= steps[-1]})


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ([], "lines"),
        ([1.0], "markers"),
        ([1.0, 2.0], "lines"),
        ([1.0, None, 2.0, 3.0], "lines+markers"),
        ([None, 1.0, 2.0, None], "lines"),
        ([1.0, 2.0, None, 3.0], "lines+markers"),
    ],
)
def test_a_point_without_a_neighbour_is_visible(values: list[float | None], mode: str) -> None:
    assert mode_of(values) == mode


def test_the_axis_of_flops_is_that_of_the_model_and_empty_where_no_start_said_them() -> None:
    series = series_of(1, 2, 3)
    assert figure_of(CHARTS["loss"], {"run": series}, View("flops"))["data"] == []
    series.flops_per_token = 1e9
    [trace] = drawn(figure_of(CHARTS["loss"], {"run": series}, View("flops")))
    assert trace["x"] == [64e9, 128e9, 192e9]


def test_a_legend_lists_what_is_drawn() -> None:
    figure = figure_of(CHARTS["loss"], {"run": series_of(1, 2, 3, 2)}, View(smoothing=0.5))
    assert figure["layout"]["showlegend"]
    assert [trace["name"] for trace in figure["data"] if trace.get("showlegend", True)] == [
        "train/loss",
        "train/loss (undone)",
    ]
    assert not figure_of(CHARTS["loss"], {"run": series_of(1, 2)})["layout"]["showlegend"]
    alone = figure_of(CHARTS["loss"], {"a": series_of(1, 2), "b": Series()})
    assert alone["layout"]["showlegend"], "whose curve it is"
    marks = [Mark("failure", 1, 1000.0, ""), Mark("skipped", 2, 1000.0, "")]
    assert legend_of(marks) == ["✕ failed", "▽ skipped step"]
    assert len(set((SIGNS | TICKS).values())) == len(SIGNS | TICKS)


def test_a_course_that_was_given_up_is_a_line_of_its_own() -> None:
    figure = figure_of(CHARTS["loss"], {"run": series_of(1, 2, 3, 4, 2, 3, 2)})
    assert drawn(figure)[0]["x"] == [1, 2]
    [undone] = drawn(figure, "undone")
    assert list(zip(undone["x"], undone["y"], strict=True)) == [(2, 2), (3, 3), (2, None), (2, 2), (3, 3), (4, 4)]


def test_marks_stand_where_they_happened_and_say_what() -> None:
    series = series_of(*range(1, 11))
    marks = [Mark("checkpoint", 5, 1040.0, "checkpoint 5"), Mark("resumed", 5, 1045.0, "resumed from 5")]
    figure = figure_of(CHARTS["loss"], {"run": series}, marks=marks)
    [ticks] = drawn(figure, "ticks")
    assert (ticks["x"], ticks["text"], ticks["yaxis"]) == ([5], ["checkpoint 5"], "y2")
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [5]
    assert [note["hovertext"] for note in figure["layout"]["annotations"]] == ["resumed from 5"]
    by_time = figure_of(CHARTS["loss"], {"run": series}, View("time"), marks=marks)
    assert by_time["layout"]["shapes"][0]["x0"] == pytest.approx(45 / 3600)


def test_references_are_lines_in_the_unit_of_the_chart() -> None:
    series = series_of(1, 2, key="memory/peak_bytes")
    figure = figure_of(CHARTS["memory"], {"run": series}, View(log=True), references=[Reference("plan", 3 * 2.0**30)])
    [line] = figure["layout"]["shapes"]
    assert (line["y0"], line["name"]) == (3.0, "plan")
    assert figure["layout"]["annotations"][0]["y"] == pytest.approx(math.log10(3))


def test_of_several_runs_each_has_one_colour_in_every_chart() -> None:
    runs = {name: series_of(1, 2) for name in ("a", "b")}
    for series in runs.values():
        series.add([Metric(0.0, step, 8, 64, {"validation/loss": 1.0, "train/lr": 1.0}) for step in (3, 4)])
    lines = [(trace["name"], trace["line"]) for trace in drawn(figure_of(CHARTS["loss"], runs))]
    assert [(name, line["color"]) for name, line in lines] == [
        ("a train/loss", "series-1"),
        ("a validation/loss", "series-1"),
        ("b train/loss", "series-2"),
        ("b validation/loss", "series-2"),
    ]
    assert len({tuple(line.items()) for _, line in lines}) == 4
    rates = drawn(figure_of(CHARTS["lr"], runs))
    assert [(trace["name"], trace["line"]["color"]) for trace in rates] == [("a", "series-1"), ("b", "series-2")]


def test_a_small_learning_rate_is_no_millionth() -> None:
    figure = figure_of(CHARTS["lr"], {"run": series_of(1, 2, key="train/lr")})
    assert figure["layout"]["yaxis"]["tickformat"] == "~g"


def test_perplexity_is_the_exponential_of_losses_and_of_nothing_else() -> None:
    series = series_of(2, 3, 800)
    assert drawn(figure_of(CHARTS["loss"], {"run": series}, View(perplexity=True)))[0]["y"] == [
        math.exp(2),
        math.exp(3),
        None,
    ]
    rates = series_of(2, key="train/lr")
    assert drawn(figure_of(CHARTS["lr"], {"run": rates}, View(perplexity=True)))[0]["y"] == [2.0]
