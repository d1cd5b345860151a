"""The page of all runs: what it shows, its filters and order, and that it follows what happens and disturbs nobody."""

from __future__ import annotations

import re
from pathlib import Path

from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import Reviewed
from browser.waiting import until
from playwright.sync_api import Page, ViewportSize, expect
from support.training import tiny_job

from orchestrator.dashboard.rendering import NOTHING

PHONE = ViewportSize(width=390, height=844)


def rows(page: Page) -> list[str]:
    """What the rows are called."""
    return [name.split()[0] for name in page.locator("table.runs tbody th").all_inner_texts()]


def jobs(page: Page) -> list[str]:
    """The same without the ids of runs."""
    return [row.partition("/")[0] for row in rows(page)]


def opened(visitor: Visitor, dashboard: Dashboard, query: str = "") -> Page:
    """The page, once the index is complete."""
    page = visitor(f"{dashboard.address}/{query}")
    expect(page.get_by_text("Reading the folder")).to_have_count(0)
    return page


def test_all_runs_and_a_sweep_in_one_row(visitor: Visitor, reviewing: Dashboard, reviewed: Reviewed) -> None:
    page = opened(visitor, reviewing)
    assert sorted(jobs(page)) == ["broken", "changed", "diverged", "rates", "resumed", "small"]
    sweep = page.locator("tr.sweep")
    expect(sweep).to_contain_text("12 cells")
    expect(sweep).to_contain_text("11 completed")
    expect(sweep).to_contain_text("1 failed")
    small = page.locator("tr", has_text=f"small/{reviewed.completed.run_id}")
    expect(small).to_contain_text("60 / 60")
    expect(small).to_contain_text("PP2")
    expect(small.get_by_role("img", name=re.compile(r"loss from [\d.]+ to [\d.]+"))).to_be_visible()
    expect(page.locator("tr", has_text="diverged/")).to_contain_text("failed nan")
    chips = page.get_by_role("navigation", name="States")
    assert chips.inner_text().split("\n")[:3] == ["all 17", "completed 14", "failed 3"]
    visitor.photograph("runs")
    page.locator("#theme").click()
    visitor.photograph("runs-dark")
    # On the window of a laptop no column is out of sight, and a bar has the colour of its state.
    page.set_viewport_size({"width": 1280, "height": 900})
    until(page, "document.querySelector('#compare').scrollWidth <= document.querySelector('#compare').clientWidth")
    bar, state = (page.locator("tr", has_text="diverged/").locator(each) for each in ("progress", ".state"))
    ink = "it => getComputedStyle(it).color"
    assert bar.evaluate(ink) == state.evaluate(ink)
    visitor.photograph("runs-laptop")
    page.get_by_role("link", name="A row for each cell").click()
    expect(page.locator("table.runs tbody tr")).to_have_count(17)
    assert jobs(page).count("cell") == 12
    assert "cells=all" in page.url
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visitor.photograph("runs-phone")


def test_filters_chips_and_their_address(visitor: Visitor, reviewing: Dashboard) -> None:
    page = opened(visitor, reviewing)
    page.get_by_role("searchbox").press_sequentially("optimizer.lr>=1e-2 cells")
    page.get_by_role("searchbox").fill("optimizer.lr>=1e-2 -cause:nan")
    expect(page.locator("tr.sweep")).to_contain_text("3 cells")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)
    page.wait_for_url(re.compile("q=optimizer"))
    page.get_by_role("link", name="failed 1").click()
    expect(page.locator("tr.sweep")).to_contain_text("1 cell")
    expect(page.get_by_role("searchbox")).to_have_value("optimizer.lr>=1e-2 -cause:nan")
    page.reload()
    expect(page.locator("tr.sweep")).to_contain_text("1 cell")
    visitor(f"{reviewing.address}/?q=optimiser.lr%3E1")
    expect(page.get_by_role("alert")).to_have_text("there is no field optimiser.lr: did you mean optimizer.lr?")
    expect(page.locator("table.runs tbody tr")).to_have_count(6)
    visitor(f"{reviewing.address}/?q=%3Cscript%3E")
    expect(page.get_by_text("No matching runs.")).to_be_visible()


def test_order_by_a_column(visitor: Visitor, reviewing: Dashboard) -> None:
    page = opened(visitor, reviewing, "?cells=all")
    header = page.get_by_role("columnheader", name="Loss", exact=True)
    header.get_by_role("link").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    column = page.locator("table.runs tbody tr td:nth-child(7)")
    shown = [float(text) for text in column.all_inner_texts() if text not in (NOTHING, "nan")]
    assert len(shown) > 12
    assert shown == sorted(shown)
    header.get_by_role("link").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    assert [float(text) for text in column.all_inner_texts() if text not in (NOTHING, "nan")] == shown[::-1]
    for name in ("Run", "State", "Progress", "ETA", "Tokens/s", "Goodput", "Processes", "Age", "User", "Sweep"):
        page.get_by_role("columnheader", name=name, exact=True).get_by_role("link").click()
        expect(page.locator("table.runs tbody tr")).to_have_count(17)


def test_selected_runs_are_compared(visitor: Visitor, reviewing: Dashboard, reviewed: Reviewed) -> None:
    page = opened(visitor, reviewing)
    keys = [f"{run.name}/{run.run_id}" for run in (reviewed.completed, reviewed.changed)]
    page.get_by_label(f"Select {keys[0]}").check()
    page.get_by_role("link", name="completed 14").click()
    expect(page.get_by_label(f"Select {keys[0]}")).to_be_checked()
    page.get_by_label(f"Select {keys[1]}").check()
    page.get_by_role("searchbox").fill("small")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)
    with page.expect_navigation(url=re.compile("/compare"), wait_until="commit") as navigated:
        page.get_by_role("button", name="Compare selected").click()
    del navigated
    assert [part.replace("%2F", "/") for part in re.findall("run=([^&]*)", page.url)] == keys


def test_a_live_run_moves_on_and_leaves_the_reader_alone(
    visitor: Visitor, dashboards: Dashboards, reviewed: Reviewed, tmp_path: Path
) -> None:
    own = reviewed.copied(tmp_path)
    dashboard = dashboards.start(own.runs_dir)
    with own.live(tiny_job("live", schedule={"train_iters": 9000})) as run:
        page = opened(visitor, dashboard)
        row = page.locator("tr", has_text=f"live/{run.run_id}")
        expect(row).to_contain_text("running")
        page.set_viewport_size({"width": 700, "height": 600})
        box = page.get_by_label(f"Select live/{run.run_id}")
        box.check()
        page.locator("#compare").evaluate("element => { element.scrollLeft = 55; }")
        before = row.inner_text()
        expect(row).not_to_have_text(before)
        assert re.search(r"\b\d+ / 9000", row.inner_text())
        expect(box).to_be_checked()
        expect(box).to_be_focused()
        until(page, "document.querySelector('#compare').scrollLeft == 55")
