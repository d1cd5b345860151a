"""Columns of measurements, and curves that are thinned out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.review.charts.series import GrowingSeries, Series, smoothed, thinned
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import Metric, MetricLog, read_series

numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(values=st.lists(numbers, max_size=400), most=st.integers(5, 60))
def test_a_thinned_curve_keeps_its_ends_and_extremes(values: list[float], most: int) -> None:
    places = thinned(values, most)
    assert places == sorted(set(places))
    assert len(places) <= max(most, 5)
    if values:
        assert places[0] == 0
        assert places[-1] == len(values) - 1
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        kept = [values[place] for place in places]
        assert min(finite) in kept
        assert max(finite) in kept
    assert any(math.isnan(values[place]) for place in places) or not any(
        math.isnan(value) and not any(math.isinf(other) for other in values) for value in values
    )


records = st.lists(
    st.tuples(st.integers(0, 40), st.dictionaries(st.sampled_from(["train/loss", "validation/loss"]), st.floats(0, 9))),
    max_size=60,
)


@given(records=records)
def test_columns_say_what_the_log_says(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, dict[str, float]]]
) -> None:
    run = RunDir(tmp_path_factory.mktemp("run"))
    log = MetricLog(run, check=lambda: None)
    growing = GrowingSeries(run.metrics_file)
    for number, (iteration, values) in enumerate(records):
        log.append(iteration, iteration * 8, iteration * 64, values, measured=float(number))
        if number % 7 == 0:
            growing.refresh()
    series = growing.refresh()
    for key in ("train/loss", "validation/loss"):
        column = series.columns.get(key)
        found = [] if column is None else list(zip(column.iterations, column.values, strict=True))
        assert found == read_series(run, key)
    assert list(series.iterations) == sorted({iteration for iteration, _ in records})


def test_a_log_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    log = MetricLog(run, check=lambda: None)
    for iteration in (1, 2, 3):
        log.append(iteration, 0, 0, {"train/loss": 1.0})
    growing = GrowingSeries(run.metrics_file)
    assert list(growing.refresh().iterations) == [1, 2, 3]
    run.metrics_file.unlink()
    assert list(growing.refresh().iterations) == []
    log.append(9, 0, 0, {"train/loss": 2.0})
    assert list(growing.refresh().columns["train/loss"].values) == [2.0]


@given(value=st.floats(-1e6, 1e6), count=st.integers(1, 50), weight=st.floats(0, 0.999))
def test_smoothing_leaves_a_constant_as_it_is(value: float, count: int, weight: float) -> None:
    assert list(smoothed([value] * count, weight)) == pytest.approx([value] * count)


def test_smoothing_follows_and_passes_over_gaps() -> None:
    found = smoothed([0.0, 1.0, math.nan, 1.0], 0.5)
    assert found[0] == 0.0
    assert found[1] == pytest.approx(2 / 3)
    assert math.isnan(found[2])
    assert found[3] == pytest.approx((0.25 * 1 + 0.5 * 1) / 0.875)


def test_keys_of_the_same_records_share_their_iterations_until_one_is_missing() -> None:
    series = Series()
    series.add([Metric(0.0, 0, 0, 0, {"validation/loss": 1.0})])
    series.add(Metric(0.0, step, 0, 0, {"train/loss": 1.0, "train/lr": 2.0}) for step in range(1, 100))
    loss, rate = series.columns["train/loss"], series.columns["train/lr"]
    assert loss.iterations is rate.iterations
    assert series.bytes == 100 * 32 + (1 + 1 + 3 * 99) * 8
    series.add(
        [Metric(0.0, 100, 0, 0, {"train/loss": 1.0}), Metric(0.0, 101, 0, 0, {"train/loss": 1.0, "train/lr": 3.0})]
    )
    assert list(loss.iterations) == list(range(1, 102))
    assert list(rate.iterations) == [*range(1, 100), 101]
    assert rate.values[-1] == 3.0
