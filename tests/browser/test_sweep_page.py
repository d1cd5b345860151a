"""Sweeps in a browser: the list, and one of twelve cells with what matters in it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import FAILED_CELL, SWEEP, Reviewed
from playwright.sync_api import expect
from support.event_log import append_to_ledger
from support.training import tiny_job

from orchestrator.sweeps.states import cell_statuses, ranked

METRIC = "validation/loss"


def test_twelve_cells(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    page = visitor(reviewing.address + "/sweeps")
    expect(page.get_by_role("row", name=re.compile(SWEEP))).to_contain_text("11 completed")
    visitor.photograph("sweeps")
    page.get_by_role("link", name=SWEEP).click()
    expect(page.get_by_label("Progress")).to_contain_text("11 of 12 cells done")
    cells = ranked(cell_statuses(reviewed.sweep, reviewed.sweep.planned()), METRIC, "min")
    expect(page.get_by_label("Progress")).to_contain_text(f"The best: {cells[0].entry.name}")
    rows = page.locator("#cells tbody tr")
    assert [row.get_by_role("link").inner_text() for row in rows.all()] == [cell.status.run.run_id for cell in cells]
    assert "★" in rows.first.inner_text()
    expect(page.get_by_label("What matters")).to_contain_text("of the 11 cells", ignore_case=True)
    expect(page.get_by_label("Failed cells")).to_contain_text(FAILED_CELL)
    expect(page.get_by_label("Failed cells")).to_contain_text("Cannot allocate memory: 3.5 GiB")
    expect(page.get_by_label("Cells that cannot run")).to_contain_text("global batch")
    for label in ("Grid", "One parameter", "Parameters of every cell", "Loss of the cells"):
        figure = page.get_by_label(label, exact=True)
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
    expect(page.get_by_label("Grid", exact=True).locator(".annotation-text")).to_have_text("failed")
    assert len(page.get_by_label("Loss of the cells").locator(".scatterlayer .trace").all()) == 12
    # Its background hides the lines behind a label.
    label = page.get_by_label("Parameters of every cell").locator(".annotation rect.bg").first
    assert label.evaluate("it => getComputedStyle(it).fill") == "rgb(255, 255, 255)"
    expect(page.get_by_label("Loss of the cells").locator(".legendtext").first).to_have_text("the best 2")
    visitor.photograph("sweep")
    visitor.narrow()
    visitor.photograph("sweep-phone")
    page.get_by_role("link", name="Compare the best").click()
    for cell in cells[:5]:
        expect(page.locator("#compared")).to_contain_text(cell.status.run.run_id)
    assert len(page.locator("#compared tbody tr").all()) == 5


def test_another_metric_and_other_axes_are_in_the_address(reviewing: Dashboard, visitor: Visitor) -> None:
    page = visitor(f"{reviewing.address}/sweeps/{SWEEP}")
    page.get_by_label("compared by").select_option("throughput/tokens_per_second")
    page.get_by_label("across").select_option("batch.global_batch_size")
    page.wait_for_url(re.compile("metric=throughput.*x=batch"))
    expect(page.get_by_role("columnheader", name="throughput/tokens_per_second", exact=True)).to_be_visible()
    grid = page.get_by_label("Grid", exact=True)
    expect(grid.locator(".xtitle")).to_have_text("gbs")
    expect(grid.locator(".ytitle")).to_have_text("lr")


def test_it_follows_a_cell_that_trains(
    dashboards: Dashboards, visitor: Visitor, reviewed: Reviewed, tmp_path: Path
) -> None:
    mine = reviewed.copied(tmp_path)
    plan = asdict(mine.sweep.planned())
    with mine.live(tiny_job("going", schedule={"train_iters": 9000}), seconds=0.4) as run:
        values = {"optimizer.lr": "2e-3", "batch.global_batch_size": "8"}
        added = {"id": "0" * 64, "name": "lr=2e-3,gbs=8", "values": values, "run": f"going/{run.run_id}"}
        append_to_ledger(mine.sweep, "planned", **{**plan, "generation": 2, "cells": [*plan["cells"], added]})
        page = visitor(f"{dashboards.start(mine.runs_dir).address}/sweeps/{SWEEP}")
        progress = page.get_by_label("Progress")
        expect(progress).to_contain_text("11 of 13 cells done")
        expect(progress).to_contain_text(re.compile(r"1 running.*about .* left", re.DOTALL))
        steps = page.locator("#cells").get_by_role("row").filter(has_text="2e-3").get_by_role("cell").nth(5)
        seen = steps.inner_text()
        expect(steps).not_to_have_text(seen)


def test_damaged_sweeps_and_those_that_are_not_there(
    dashboards: Dashboards, visitor: Visitor, reviewed: Reviewed, tmp_path: Path
) -> None:
    mine = reviewed.copied(tmp_path)
    damaged = mine.runs_dir / "sweeps" / "<script>"
    damaged.mkdir()
    (damaged / "ledger.jsonl").write_text('{"event": "planned", "cells": [{"id": 1}]}\n')
    cell = mine.cell("lr=1e-3,gbs=4")
    cell.resolved().unlink()
    with open(mine.sweep.ledger, "a") as ledger:
        ledger.write('{"event": "planned", "cel')
    address = dashboards.start(mine.runs_dir).address
    page = visitor(f"{address}/sweeps")
    expect(page.get_by_role("main")).to_contain_text("<script>/ledger.jsonl is damaged")
    page.get_by_role("link", name=SWEEP).click()
    expect(page.get_by_label("Progress")).to_contain_text("10 of 12 cells done")
    expect(page.get_by_label("Progress")).to_contain_text("1 missing")
    answer = page.request.get(f"{address}/sweeps/gone")
    assert answer.status == 404
    assert "there is no sweep gone" in answer.text()
    assert page.request.get(f"{address}/sweeps/{SWEEP}/figure/heat?x=model.num_layers&y=x").status == 404
