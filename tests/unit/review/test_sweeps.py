"""A sweep as it is reviewed: from its ledger and what is known of its runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.event_log import append_to_ledger
from support.refused import refused

from orchestrator.process import Process
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.summary import unreadable
from orchestrator.review.sweeps.cells import best_of, comparison_of, importance_of, sweep_folders, view_of
from orchestrator.review.sweeps.charts import heat_map, looks_of, loss_curves, parallel, scatter
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import SweepDir, sweep_dir

RATES, LAYERS = ("1e-4", "3e-4", "1e-2"), ("2", "4")
METRIC = "validation/loss"


def entry(number: int, lr: str, layers: str) -> dict[str, Any]:
    values = {"optimizer.lr": lr, "model.num_layers": layers}
    return {"id": f"{number:064x}", "name": f"lr={lr},layers={layers}", "values": values, "run": f"cell/{number:08x}"}


def planned(runs_dir: Path, **more: Any) -> SweepDir:
    sweep = sweep_dir("rates", runs_dir)
    sweep.path.mkdir(parents=True)
    cells = [entry(number, *pair) for number, pair in enumerate(itertools.product(RATES, LAYERS))]
    append_to_ledger(sweep, "planned", **{"generation": 1, "metric": METRIC, "goal": "min", "cells": cells, **more})
    return sweep


def summary(runs_dir: Path, number: int, **known: Any) -> RunSummary:
    plain = unreadable(RunDir(runs_dir / "cell" / f"{number:08x}"), "")
    return replace(plain, **{"state": "completed", "iteration": 100, "train_iters": 100, "problem": None, **known})


def by_key(*runs: RunSummary) -> Mapping[str, RunSummary]:
    return {run.key: run for run in runs}


def measured(runs_dir: Path, losses: list[float | None]) -> Mapping[str, RunSummary]:
    return by_key(
        *(
            summary(runs_dir, number, values={} if loss is None else {METRIC: loss})
            for number, loss in enumerate(losses)
        )
    )


def test_the_best_first_and_what_matters(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    runs = measured(tmp_path, [3.0, 3.1, 2.0, 2.1, 9.0, 9.1])
    view = view_of(sweep, runs)
    assert view.metric == METRIC
    assert [cell.value for cell in view.cells] == [2.0, 2.1, 3.0, 3.1, 9.0, 9.1]
    assert view.best is not None
    assert view.best.entry.name == "lr=3e-4,layers=2"
    assert view.axes == {"optimizer.lr": ["1e-4", "3e-4", "1e-2"], "model.num_layers": ["2", "4"]}
    found, dominating = importance_of(view)
    assert dominating is None
    assert [each.path for each in found.shares] == ["optimizer.lr", "model.num_layers"]
    assert found.shares[0].share > 0.99


def test_cells_without_a_value_come_last_and_are_not_the_best(tmp_path: Path) -> None:
    sweep = planned(tmp_path, goal="max")
    view = view_of(sweep, measured(tmp_path, [1.0, None, float("nan"), 3.0, float("inf"), 2.0]))
    assert [cell.value for cell in view.measured] == [3.0, 2.0, 1.0]
    assert view.cells[-1].value is None or not view.cells[-1].is_measured
    assert len(view.cells) == 6


def test_states_reasons_and_what_left(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    pruned = [{"name": f"gbs={size}", "values": {}, "reason": "not whole"} for size in (7, 9)]
    pruned.append({"name": "tp=3", "values": {}, "reason": "heads"})
    cells = [entry(number, *pair) for number, pair in enumerate(itertools.product(RATES, LAYERS))][:5]
    fields = {"generation": 2, "metric": METRIC, "goal": "min", "cells": cells, "pruned": pruned}
    append_to_ledger(sweep, "planned", **fields)
    driver = Process.current().to_record()
    jobs = {cell["id"]: "local" for cell in cells}
    append_to_ledger(sweep, "submitted", how="local", cluster=None, max_parallel=2, jobs=jobs, driver=driver)
    runs = by_key(
        summary(tmp_path, 0, launched=9e9),
        summary(tmp_path, 1, state="failed", cause="nan", launched=9e9),
        summary(tmp_path, 2, state="running", iteration=50, eta=60.0),
        summary(tmp_path, 3, state="created"),
        summary(tmp_path, 5, state="stopped"),
    )
    (tmp_path / "cell" / "00000004").mkdir(parents=True)  # which nobody has read yet
    view = view_of(sweep, runs)
    states = {cell.entry.run: cell.state for cell in view.cells}
    assert states == {
        "cell/00000000": "completed",
        "cell/00000001": "failed",
        "cell/00000002": "running",
        "cell/00000003": "pending",
        "cell/00000004": "missing",
        "cell/00000005": "stopped",
    }
    assert [cell.entry.run for cell in view.cells if cell.left] == ["cell/00000005"]
    assert sum(view.states.values()) == 5
    assert [(each.reason, len(each.names)) for each in view.pruned] == [("not whole", 2), ("heads", 1)]
    assert [cell.entry.run for cell in view.failed] == ["cell/00000001"]
    assert view.eta == pytest.approx(60 + 120), "the one that waits takes as long as the one that runs"


def test_what_waits_takes_as_long_as_what_is_done(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    jobs = {f"{number:064x}": "local" for number in range(6)}
    append_to_ledger(sweep, "submitted", how="local", jobs=jobs, driver=Process.current().to_record())
    runs = by_key(
        summary(tmp_path, 0, launched=9e9, ended=9e9 + 100.0),
        summary(tmp_path, 1, state="running", eta=50.0),
        summary(tmp_path, 2, state="running", eta=30.0),
        *(summary(tmp_path, number, state="created") for number in (3, 4, 5)),
    )
    assert view_of(sweep, runs).eta == pytest.approx((50 + 30 + 300) / 2)
    assert view_of(sweep, by_key(summary(tmp_path, 0))).eta is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"event": "planned", "cells": [{"id": "1"}]}', "damaged_ledger"),
        ('{"event": "planned", "cells": 7}', "damaged_ledger"),
        ('{"event": "planned", "cells": [], "pruned": [1]}', "damaged_ledger"),
        ('{"event": "other"}', "not_a_sweep"),
    ],
)
def test_a_damaged_ledger_is_said(tmp_path: Path, line: str, code: str) -> None:
    sweep = sweep_dir("rates", tmp_path)
    sweep.path.mkdir(parents=True)
    sweep.ledger.write_text(f"{line}\n")
    [found] = sweep_folders(tmp_path)
    with refused(code, "rates"):
        view_of(found, {})


def test_the_grid_says_the_best_over_the_other_parameters(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    view = view_of(sweep, measured(tmp_path, [3.0, 3.5, 2.0, None, 9.0, 9.5]))
    [drawn] = heat_map(view, "optimizer.lr", "model.num_layers", "best")["data"]
    assert drawn["x"] == list(RATES)
    assert drawn["y"] == list(LAYERS)
    assert drawn["z"] == [[3.0, 2.0, 9.0], [3.5, None, 9.5]]
    figure = heat_map(view, "optimizer.lr", "optimizer.lr", "mean")
    assert figure["data"][0]["z"][0][0] == pytest.approx(3.25)
    notes = heat_map(view, "optimizer.lr", "model.num_layers", "best")["layout"]["annotations"]
    assert [(note["x"], note["y"], note["text"]) for note in notes] == [(1, 1, "completed")]


def test_a_parameter_over_decades_is_on_a_logarithmic_axis(tmp_path: Path) -> None:
    view = view_of(planned(tmp_path), measured(tmp_path, [3.0, 3.5, 2.0, 2.5, 9.0, 9.5]))
    figure = scatter(view, "optimizer.lr")
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert figure["layout"]["xaxis"]["tickvals"] == [1e-4, 3e-4, 1e-2]
    best = next(trace for trace in figure["data"] if trace["name"] == "the best")
    assert (best["x"], best["y"]) == ([3e-4], [2.0])
    assert scatter(view, "model.num_layers")["layout"]["xaxis"]["type"] == "linear"


def test_a_parameter_with_one_value_stands_at_that_value(tmp_path: Path) -> None:
    cells = [entry(number, "3e-4", layers) for number, layers in enumerate(LAYERS)]
    view = view_of(planned(tmp_path, cells=cells), measured(tmp_path, [2.0, 1.0]))
    figure = scatter(view, "optimizer.lr")
    assert figure["layout"]["xaxis"]["type"] == "category"
    assert {x for trace in figure["data"] for x in trace["x"]} == {"3e-4"}


def test_a_cell_has_the_same_look_in_every_chart(tmp_path: Path) -> None:
    view = view_of(planned(tmp_path), measured(tmp_path, [3.0, 3.5, 2.0, 2.5, 9.0, None]))
    looks = {look.name: look.line["color"] for look in looks_of(view)}
    assert len(set(looks.values())) == len(looks) == 6
    assert {trace["name"]: trace["line"]["color"] for trace in parallel(view)["data"]}.items() <= looks.items()
    for trace in scatter(view, "optimizer.lr")["data"]:
        assert [looks[name] for name in trace["text"]] == [trace["marker"]["color"]]
    cells = {cell.entry.name: cell for cell in view.cells}
    curves = loss_curves(view, {"data": [{"name": name} for name in cells], "layout": {}}, cells)
    assert {trace["name"]: trace["line"]["color"] for trace in curves["data"]} == looks
    assert curves["layout"]["showlegend"]


def test_of_many_cells_a_group_has_a_look(tmp_path: Path) -> None:
    cells = [entry(number, f"{number}e-4", "2") for number in range(1, 11)]
    sweep = planned(tmp_path, cells=cells)
    view = view_of(sweep, by_key(*(summary(tmp_path, n, values={METRIC: float(n)}) for n in range(1, 10))))
    names = {cell.entry.name: cell for cell in view.cells}
    curves = loss_curves(view, {"data": [{"name": name} for name in names], "layout": {}}, names)
    named = [trace["name"] for trace in curves["data"]]
    assert named == ["the best 2"] * 2 + ["3 to 4"] * 2 + ["5 to 6"] * 2 + ["7 to 9"] * 3 + ["without a value"]
    assert sum(trace["showlegend"] for trace in curves["data"]) == 5
    assert {trace["name"] for trace in parallel(view)["data"]} == set(named[:-1])


def test_many_cells_none_of_which_has_measured_anything_can_be_drawn(tmp_path: Path) -> None:
    """Each sweep begins so, and comes to it again where all that was measured has left it."""
    cells = [entry(number, f"{number}e-4", layers) for layers in LAYERS for number in range(1, 6)]
    view = view_of(planned(tmp_path, cells=cells), {})
    names = {cell.entry.name: cell for cell in view.cells}
    assert loss_curves(view, {"data": [], "layout": {}}, names)["layout"]["showlegend"] is False
    assert scatter(view, "optimizer.lr")["data"] == []
    grid = heat_map(view, "optimizer.lr", "model.num_layers", "best")
    assert grid["data"][0]["z"] == [[None] * 5] * 2
    assert not grid["data"][0]["showscale"]
    assert [note["x"] for note in grid["layout"]["annotations"]] == [*range(5)] * 2


def test_labels_stand_before_the_lines_that_pass_them(tmp_path: Path) -> None:
    notes = parallel(view_of(planned(tmp_path), measured(tmp_path, [3.0, 2.0])))["layout"]["annotations"]
    assert {note["bgcolor"] for note in notes} == {"card"}


words = st.text(max_size=8)
settings = st.dictionaries(st.sampled_from(["optimizer.lr", "model.num_layers", "model.x"]), words | st.just("1e-3"))


@given(cells=st.lists(st.tuples(settings, st.none() | st.floats(allow_nan=True)), max_size=12))
def test_every_sweep_can_be_drawn(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[dict[str, str], float | None]]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    sweep = sweep_dir("any", folder)
    sweep.path.mkdir(parents=True)
    entries = [
        {"id": str(number), "name": f"<b>{number}", "values": values, "run": f"cell/{number:08x}"}
        for number, (values, _) in enumerate(cells)
    ]
    append_to_ledger(sweep, "planned", generation=1, metric=None, goal="min", cells=entries)
    view = view_of(sweep, measured(folder, [value for _, value in cells]))
    importance_of(view)
    figures = [parallel(view), *(scatter(view, axis) for axis in view.axes)]
    figures += [heat_map(view, x, y, "median") for x in view.axes for y in view.axes]
    text = json.dumps(figures, allow_nan=False)
    assert "<b>" not in text
    for trace in parallel(view)["data"]:
        assert len(trace["x"]) == len(trace["y"]) == len(trace["text"])
        assert all(place is None or -1e-9 <= place <= 1 + 1e-9 for place in trace["y"])


@pytest.mark.parametrize("is_measured", [True, False])
@pytest.mark.parametrize("text", ["1e-{}", '<&"\x00\x7f\u1234\U0001f600' * 30 + "{}"])
def test_figures_of_many_long_cells_are_of_bounded_size(tmp_path: Path, text: str, is_measured: bool) -> None:
    keys = [f"model.{'k' * 60}{number}" for number in range(14)]
    cells = []
    for number, (x, y) in enumerate(itertools.product(range(25), repeat=2)):
        values = {key: text.format(number + place) for place, key in enumerate(keys)}
        values |= {"optimizer.lr": text.format(x), "model.num_layers": text.format(y)}
        cells.append({**entry(number, "", ""), "name": f"{text}{number}" * 3, "values": values})
    sweep = planned(tmp_path, cells=cells, metric="<" * 500)
    losses = [number / 7 for number in range(len(cells))]
    runs = [summary(tmp_path, n, values={"<" * 500: loss} if is_measured else {}) for n, loss in enumerate(losses)]
    view = view_of(sweep, by_key(*runs))
    figures = {f"scatter {axis}": scatter(view, axis) for axis in view.axes}
    figures["parallel"] = parallel(view)
    for x, y in (("optimizer.lr", "model.num_layers"), (keys[0], keys[1]), (keys[0], "optimizer.lr")):
        figures[f"heat {x} {y}"] = heat_map(view, x, y, "best")
    for name, figure in figures.items():
        assert len(json.dumps(figure, ensure_ascii=False, separators=(",", ":")).encode()) < 64 << 10, name
    if is_measured:
        for figure in figures.values():
            assert max(value for trace in figure["data"] for value in _numbers(trace["z" if "z" in trace else "y"]))
        for name in ("scatter optimizer.lr", "scatter model.num_layers"):
            points = [point for trace in figures[name]["data"] for point in trace["y"]]
            assert 0.0 in points
            assert len(points) > 20
            assert max(points) > 0.8 * max(losses), "the best and others, not the best alone"


def _numbers(values: Any) -> list[float]:
    return [each for value in values for each in (_numbers(value) if isinstance(value, list) else [value or 0.0])]


def test_a_cell_that_left_the_sweep_is_never_the_best(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    kept = [entry(number, *pair) for number, pair in enumerate(itertools.product(RATES, LAYERS))][1:]
    append_to_ledger(sweep, "planned", generation=2, metric=METRIC, goal="min", cells=kept)
    runs = measured(tmp_path, [0.5, 3.0, 2.0, None, 4.0, 5.0])
    view = view_of(sweep, runs)
    assert [(cell.value, cell.left) for cell in view.cells][:5] == [
        (2.0, False),
        (3.0, False),
        (4.0, False),
        (5.0, False),
        (0.5, True),
    ]
    assert view.best is view.cells[0]
    assert best_of(list(runs.values()), comparison_of(sweep)) is view.best.run


def test_the_best_of_a_row_is_what_the_ledger_calls_so(tmp_path: Path) -> None:
    runs = list(measured(tmp_path, [1.0, 3.0, 2.0]).values())
    assert comparison_of(sweep_dir("rates", tmp_path)) is None
    assert best_of(runs, None) is runs[0]
    sweep = planned(tmp_path, goal="max")
    assert best_of(runs, comparison_of(sweep)) is runs[1]
    append_to_ledger(sweep, "planned", generation=2, metric="train/grad_norm", goal="min", cells=[])
    assert best_of(runs, comparison_of(sweep)) is None, "the ledger is read again when it has changed"


def test_nothing_of_a_sweep_is_markup_of_a_chart(tmp_path: Path) -> None:
    evil = "<b>1</b>"
    values = [{"optimizer.lr": evil, "<i>x": value} for value in ("<u>", "2")]
    cells = [{**entry(n, "1", "2"), "name": evil, "values": each} for n, each in enumerate(values)]
    sweep = planned(tmp_path, cells=cells, metric="<a>")
    view = view_of(sweep, by_key(*(summary(tmp_path, n, values={"<a>": 1.0 + n}) for n in range(2))))
    for figure in (heat_map(view, "<i>x", "optimizer.lr", "best"), scatter(view, "<i>x"), parallel(view)):
        assert figure["data"]
        texts = [text.replace("<extra></extra>", "").replace("<br>", "") for text in _texts(figure)]
        assert not [text for text in texts if "<" in text]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for part in parts for text in _texts(part)]


def test_a_search_says_why_cells_were_stopped_and_its_best_was_trained_to_the_end(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    plan = {"strategy": "halving", "reduction": 3, "shares": [0.1, 1.0], "metric": METRIC, "goal": "min", "trials": 6}
    append_to_ledger(sweep, "search_planned", **plan)
    values = [3.0, 3.1, 2.0, 2.1, 9.0, 9.1]
    for number, value in enumerate(values):
        cell = {"cell": f"{number:064x}", "rung": 0, "iteration": 10}
        append_to_ledger(sweep, "rung_reached", **cell, value=value)
        if number not in (2, 3):
            append_to_ledger(sweep, "trial_stopped", **cell, value=value, rank=6, of=6)
    ends = {
        number: {"state": "completed"} if number in (2, 3) else {"state": "stopped", "iteration": 10}
        for number in range(6)
    }
    losses = [1.0, 3.1, 2.0, 2.1, 9.0, 9.1]
    runs = [summary(tmp_path, number, values={METRIC: losses[number]}, **ends[number]) for number in range(6)]
    view = view_of(sweep, by_key(*runs))
    said = {cell.entry.name: str(cell.standing) for cell in view.cells if cell.standing is not None}
    assert said["lr=1e-4,layers=4"] == f"at step 10: rank 4 of 6 at rung 1 by {METRIC} 3.1"
    assert len(said) == 4
    assert view.best is not None
    assert view.best.entry.name == "lr=3e-4,layers=2", "the stopped one was measured at another step"
    assert view.search is not None
    assert view.search.summary() == (
        "halving search: 6 of 6 trials begun, 6 reached rung 1, 0 trained to the end; its program does not run on this "
        "machine"
    )
    assert not view.is_active
