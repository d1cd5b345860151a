"""The table of runs: its order, cells in one row, and the small line of losses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.review.summaries import summary

from orchestrator.dashboard.rendering import spark_points, spark_words
from orchestrator.review.filters.columns import column_of, offered_columns
from orchestrator.review.redaction import Redaction
from orchestrator.review.summary import spark
from orchestrator.review.table import COLUMNS, Cells, collapsed, counts, ordered
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog

values = st.floats(allow_nan=True, allow_infinity=True)


@given(losses=st.lists(st.none() | values, max_size=20))
def test_what_has_no_value_is_last_in_both_directions(losses: list[float | None]) -> None:
    runs = [summary(values={} if loss is None else {"train/loss": loss}) for loss in losses]
    known = sorted(loss for loss in losses if loss is not None and not math.isnan(loss))
    for falling in (False, True):
        found = [run.values.get("train/loss") for run in ordered(runs, COLUMNS["loss"], falling=falling)]
        assert len(found) == len(losses)
        assert found[: len(known)] == (known[::-1] if falling else known)


def test_every_column_has_an_order_for_every_run() -> None:
    runs = [
        summary(),
        summary(state="failed", cause="nan", user="ann", sweep="s", cell="c", created=1.0, world_size=8, train_iters=5),
    ]
    for column in COLUMNS.values():
        assert len(ordered(runs, column, falling=column.falls)) == 2


def test_a_column_is_a_metric_or_a_field_of_the_spec_and_no_secret() -> None:
    secret = {"launch.env.HF_TOKEN": "hf_secret", "data.path": "s3://me:pass@x"}
    specs = [{"optimizer.lr": rate, **secret} for rate in ("2e-3", "1e-4")]
    runs = [summary(run_id=f"0000000{n}", spec=spec, values={"train/accuracy": n}) for n, spec in enumerate(specs)]
    rate = column_of("lr", runs)
    assert rate is not None
    assert (rate.label, rate.path, rate.kind) == ("lr", "optimizer.lr", "figure")
    assert [run.spec["optimizer.lr"] for run in ordered(runs, rate, falling=False)] == ["1e-4", "2e-3"]
    accuracy = column_of("train/accuracy", runs)
    assert accuracy is not None
    assert [accuracy.value(run) for run in runs] == [0, 1]
    path = column_of("data.path", runs)
    assert path is not None
    assert "pass" not in str(path.text(runs[0], Redaction(specs)))
    assert column_of("launch.env.HF_TOKEN", runs) is None
    assert column_of("train/nothing", runs) is None
    offered = offered_columns(runs, [])
    assert offered[len(COLUMNS) :] == ["train/accuracy", "optimizer.lr", "data.path"]
    assert offered_columns(runs, ["accur"]) == ["train/accuracy"]


def test_the_youngest_is_first_by_age() -> None:
    runs = [summary(created=created) for created in (5.0, None, 9.0)]
    assert [run.created for run in ordered(runs, COLUMNS["age"], falling=False)] == [9.0, 5.0, None]


def test_cells_stand_in_the_place_of_the_first_of_them() -> None:
    alone, other = summary("alone"), summary("other")
    cells = [summary("cell", f"{n}", sweep="s", values={"train/loss": float(n)}, created=float(n)) for n in (3, 1, 2)]
    rows = collapsed([alone, cells[0], other, *cells[1:]])
    assert rows == [alone, Cells("s", tuple(cells)), other]
    assert counts(cells) == {"lost": 3}
    row = rows[1]
    assert isinstance(row, Cells)
    assert (row.created, row.progress, dict(row.states)) == (1.0, 0.0, {"lost": 3})


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=60))
def test_a_line_stays_within_its_frame(values: list[float]) -> None:
    points = [tuple(map(float, point.split(","))) for point in spark_points(values, 90, 22).split()]
    assert len(points) in (0, len(values))
    assert all(0 <= x <= 90.001 and 0 <= y <= 22.001 for x, y in points)
    if values:
        assert spark_words(values).startswith("loss from ")


@pytest.mark.parametrize("steps", [30, 3000])
def test_a_sparkline_ends_where_the_run_stands(tmp_path: Path, steps: int) -> None:
    """Steps that a resume has undone are no part of it, in a short log and in one that is read at some places."""
    log = MetricLog(RunDir(tmp_path), check=lambda: None)
    for step in [*range(1, steps + 1), *range(steps // 2, steps // 2 + 3)]:
        log.append(step, 0, 0, {"train/loss": float(step)}, measured=1000.0)
    found = spark(RunDir(tmp_path).metrics_file)
    assert list(found) == sorted(set(found))
    assert len(found) > 5
    assert found[-1] == steps // 2 + 2
