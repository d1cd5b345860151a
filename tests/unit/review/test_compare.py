"""Differences between runs, which of them is the best, and what they are called beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.training import tiny_job

from orchestrator.cli.runs.compare import as_record
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.review.charts.series import Series
from orchestrator.review.compare import (
    Goal,
    best_places,
    common_step,
    compare,
    differences,
    facts_of,
    labels,
    told_apart,
)
from orchestrator.review.summary import summarize_each
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import Metric

paths = st.sampled_from(["name", "seed", "optimizer.lr", "optimizer.clip_grad", "model.num_layers", "launch.nodes"])
specs = st.lists(st.dictionaries(paths, st.sampled_from(["1", "2", "0.001", "[1,2]"])), max_size=6)


@given(specs=specs)
def test_what_is_said_to_differ_differs_and_nothing_else(specs: list[Mapping[str, str]]) -> None:
    found = differences(specs)
    known = [spec for spec in specs if spec]
    said = {each.path for each in found}
    for path in {path for spec in specs for path in spec}:
        assert (path in said) == (len({spec.get(path) for spec in known}) > 1)
    for each in found:
        assert each.values == tuple(spec.get(each.path) for spec in specs)
    sections = [each.section for each in found]
    assert sections == sorted(sections, key=sections.index), "the fields of a section stand together"


@given(specs=specs.filter(len))
def test_runs_never_have_the_same_name_beside_each_other(specs: list[Mapping[str, str]]) -> None:
    keys = [f"job/{number:08x}" for number in range(len(specs))]
    found = labels(keys, differences(specs))
    assert len(found) == len(keys)
    assert len(set(found)) == len(keys)


def test_runs_are_called_by_the_fewest_fields_that_tell_them_apart() -> None:
    grid = [
        {"optimizer.lr": lr, "optimizer.min_lr": lr, "runtime.seed": seed, "launch.nodes": seed}
        for lr in ("0.001", "0.0003")
        for seed in ("1", "2", "3")
    ]
    keys = [f"small/{number:08x}" for number in range(6)]
    assert labels(keys, differences(grid))[:2] == ("lr=0.001, runtime.seed=1", "lr=0.001, runtime.seed=2")
    assert labels(keys[:2], differences(grid[:2])) == ("runtime.seed=1", "runtime.seed=2")


def test_jobs_with_names_of_their_own_go_by_them() -> None:
    specs = [{"name": "small", "optimizer.lr": "1"}, {"name": "large", "optimizer.lr": "2"}]
    assert labels(["small/0", "large/0"], differences(specs)) == ("small", "large")


def test_the_same_job_twice_goes_by_its_run_ids() -> None:
    assert labels(["a/1234", "a/1234-2"], []) == ("1234", "1234-2")
    # Runs of two folders may have the same id, and the curves of neither may be lost.
    assert labels(["a/1234", "a/1234", "b/1234"], []) == ("1234", "1234 (2)", "1234 (3)")
    assert told_apart(["a", "a (2)", "a", "a"]) == ("a", "a (2)", "a (3)", "a (4)")


@given(values=st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=8))
def test_the_best_is_finite_and_nothing_beats_it(values: list[float | None]) -> None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    goals: tuple[tuple[Goal, Callable[[list[float]], float]], ...] = (("min", min), ("max", max))
    for goal, best in goals:
        places = best_places(values, goal)
        assert all(values[place] == best(finite) for place in places)
        assert bool(places) == (len(set(finite)) > 1)
    assert best_places(values, None) == frozenset()


def measured(steps: int, loss: float, offset: float = 0.0) -> Series:
    series = Series()
    series.add(
        Metric(
            offset + step,
            step,
            step,
            step * 100,
            {
                "train/loss": loss - step / 100,
                "throughput/tokens_per_second": 100.0 if step > 1 else 1.0,
                "memory/peak_bytes": float(step == 3),
            },
        )
        for step in range(1, steps + 1)
    )
    return series


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDir]:
    jobs = [tiny_job("small", optimizer={"lr": lr}) for lr in (1e-3, 3e-4)]
    return [create_run(job, "name: small\n", tmp_path, CodeState({}, "")) for job in jobs]


def test_runs_of_different_lengths_are_compared_where_both_have_been(runs: list[RunDir]) -> None:
    found = compare(summarize_each(runs), [measured(10, 5.0), measured(40, 5.2)])
    rows = {row.measure.name: row for row in found.rows}
    assert found.common_step == 10
    assert found.labels == ("lr=0.001", "lr=0.0003")
    assert rows["common_loss"].values == pytest.approx((4.9, 5.1))
    assert rows["common_loss"].best == {0}
    assert rows["tokens"].values == (1000, 4000)
    assert rows["tokens"].best == frozenset()
    assert rows["tokens_per_second"].values == (100.0, 100.0), "the median: the first step is slow"
    assert rows["peak_bytes"].values == (1.0, 1.0)
    assert "validation" not in rows


def test_a_damaged_and_an_empty_run_are_compared_too(runs: list[RunDir]) -> None:
    runs[0].resolved().write_text('{"optimizer": ')
    found = compare(summarize_each(runs), [Series(), None])
    assert found.differences == ()
    assert found.common_step is None
    assert len(set(found.labels)) == 2
    assert found.runs[0].problem is not None


def test_no_common_step_of_one_run() -> None:
    three, two, none = facts_of(measured(3, 1.0)), facts_of(measured(2, 1.0)), facts_of(Series())
    assert common_step([three, none, None]) is None
    assert common_step([three, none, two]) == 2


def test_steps_that_a_resume_has_undone_are_no_results(runs: list[RunDir]) -> None:
    """The better losses, the larger peak and the speed of steps 5 to 8, which are done again from step 5 on."""
    series = Series()
    for step in (1, 2, 3, 4, 5, 6, 7, 8, 5):
        undone = step > 5
        values = {
            "train/loss": 9.0 - step,
            "validation/loss": 9.0 - step,
            "memory/peak_bytes": float(step),
            "throughput/tokens_per_second": 900.0 if undone else 100.0,
        }
        series.add([Metric(1000.0 + step, step, 8 * step, 64 * step, values)])
    found = compare(summarize_each(runs), [series, measured(40, 5.2)])
    curves = as_record(found, [series, measured(40, 5.2)], "train/loss", "steps", 0.0)["curves"]
    assert curves[0]["x"] == [1, 2, 3, 4, 5]
    rows = {row.measure.name: row.values[0] for row in found.rows}
    assert found.common_step == 5
    assert rows["common_loss"] == 4.0
    assert rows["best_validation"] == 4.0
    assert rows["peak_bytes"] == 5.0
    assert rows["tokens_per_second"] == 100.0
    assert (rows["tokens"], rows["seconds"]) == (320.0, 4.0)
