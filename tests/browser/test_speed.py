"""A folder of 2,000 runs, 50 of them with 100,000 measured steps, and one of 5,000: pages are there at once, in little
memory.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from baseline.packing import kept, unpack
from browser.conftest import Dashboard, Dashboards, Visitor
from browser.many import many_runs
from playwright.sync_api import Page, expect
from support.pace import slowness

from orchestrator.launch.runs import all_runs
from orchestrator.review.filters.listing import summaries_in
from orchestrator.run_directory.rundir import RunDir

pytestmark = [pytest.mark.alone, pytest.mark.slow("2,000 runs are made and read")]

RUNS, LONG, STEPS = 2000, 50, 100_000
THOUSANDS = 5000
TEMPLATES = ("dp", "interrupted", "gpt")
"""Kept runs (baseline/runs) that all of them are copies of."""
PAINT_OF_THE_RUNS, PAINT_OF_A_RUN, PAINT_OF_A_COMPARISON = 1.0, 1.5, 3.0
"""Seconds, at the promised pace."""
CURVES = 8.0
"""Seconds, at that pace, from opening the page of a run of 100,000 steps, which the server reads first."""
MEGABYTES = 400
AGE_OF_WHAT_IS_KEPT = 2.5
"""Seconds: an index lacks what was changed just before."""
VISITED = 10
"""One more than the server keeps the measurements of."""
COMPARED = 12
A_LONG_LOG = 4
"""Seconds to read one, at that pace."""


def copies(folder: Path, count: int, long: int = 0) -> list[RunDir]:
    for name in TEMPLATES:
        unpack(kept(name), folder / "few")
    runs = {run.name: run for run in all_runs(folder / "few" / "runs")}
    return many_runs([runs[name] for name in TEMPLATES], folder / "runs", count, long=long, steps=STEPS)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[RunDir]:
    return copies(tmp_path_factory.mktemp("many"), RUNS, LONG)


@pytest.fixture(scope="module")
def dashboard(dashboards: Dashboards, many: list[RunDir]) -> Dashboard:
    return dashboards.start(many[0].path.parent.parent)


def first_paint(page: Page) -> float:
    """Seconds from the navigation to the first text or picture, by the browser's own clock, at the promised pace."""
    milliseconds = page.evaluate(
        """() => new Promise((resolve) => new PerformanceObserver((list) => {
            const found = list.getEntriesByName("first-contentful-paint");
            if (found.length) resolve(found[0].startTime);
        }).observe({ type: "paint", buffered: true }))"""
    )
    return float(milliseconds) / 1000 / slowness()


def megabytes(dashboard: Dashboard) -> float:
    """The most memory that the server has had."""
    text = Path(f"/proc/{dashboard.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found
    return int(found.group(1)) / 1024


def test_a_server_that_has_just_started(visitor: Visitor, dashboard: Dashboard, many: list[RunDir]) -> None:
    """Its first page is there before it knows all runs; what it knows is the newest."""
    begun = time.monotonic()
    page = visitor(dashboard.address)
    cold = first_paint(page)
    expect(page.locator("table.runs tbody input").first).to_be_visible()
    expect(page.get_by_text("Reading the folder")).to_have_count(0, timeout=120_000)
    complete = time.monotonic() - begun
    expect(page.get_by_role("link", name=f"all {RUNS}")).to_be_visible()
    warm = {}
    for query in ("", "?page=7", "?sort=loss", "?q=lr%3E0.1+state%3Acompleted"):
        page = visitor(f"{dashboard.address}/{query}")
        warm[query] = first_paint(page)
    print(
        f"first paint {cold:.2f} s, all runs known after {complete:.1f} s, then {warm}, {megabytes(dashboard):.0f} MB"
    )
    assert cold < PAINT_OF_THE_RUNS
    assert max(warm.values()) < PAINT_OF_THE_RUNS


def test_a_server_that_starts_with_an_index(visitor: Visitor, dashboards: Dashboards, tmp_path: Path) -> None:
    """Of 5,000 runs: its pages have all of them at once."""
    runs_dir = copies(tmp_path, THOUSANDS)[0].path.parent.parent
    time.sleep(AGE_OF_WHAT_IS_KEPT)
    summaries_in(runs_dir)
    dashboard = dashboards.start(runs_dir)
    page = visitor(dashboard.address)
    cold = first_paint(page)
    expect(page.get_by_role("link", name=f"all {THOUSANDS}")).to_be_visible()
    warm = [first_paint(visitor(dashboard.address)) for _ in range(VISITED)]
    print(f"first paint {cold:.2f} s, then {warm}, {megabytes(dashboard):.0f} MB")
    assert cold < PAINT_OF_THE_RUNS
    assert sorted(warm)[VISITED // 2] < PAINT_OF_THE_RUNS, warm
    assert megabytes(dashboard) < MEGABYTES


def test_runs_of_many_steps(visitor: Visitor, dashboard: Dashboard, many: list[RunDir]) -> None:
    paints, curves = [], []
    for run in many[:VISITED]:
        begun = time.monotonic()
        page = visitor(f"{dashboard.address}/runs/{run.name}/{run.run_id}")
        paints.append(first_paint(page))
        page.wait_for_selector(".chart .main-svg")
        curves.append((time.monotonic() - begun) / slowness())
    print(f"first paint {max(paints):.2f} s, curves {max(curves):.1f} s, {megabytes(dashboard):.0f} MB")
    assert max(paints) < PAINT_OF_A_RUN
    assert max(curves) < CURVES
    assert megabytes(dashboard) < MEGABYTES


def test_many_long_runs_beside_each_other(visitor: Visitor, dashboard: Dashboard, many: list[RunDir]) -> None:
    """Each of their logs is read for all charts together, and none of them for a chart that is asked for again."""
    chosen = many[:COMPARED]
    query = "&".join(f"run={run.name}/{run.run_id}" for run in chosen)
    begun = time.monotonic()
    page = visitor(f"{dashboard.address}/compare?{query}")
    paint = first_paint(page)
    expect(page.locator(".chart .main-svg").first).to_be_visible(timeout=1000 * COMPARED * A_LONG_LOG)
    expect(page.locator("#measures").get_by_text("tokens seen")).to_be_visible(timeout=60_000)
    first = time.monotonic() - begun
    begun = time.monotonic()
    for chart in ("loss", "lr", "speed"):
        found = page.request.get(f"{dashboard.address}/compare/figure/{chart}?{query}").json()
        assert len(found["data"]) == COMPARED
    again = (time.monotonic() - begun) / slowness()
    print(f"first paint {paint:.2f} s, curves {first:.1f} s, again {again:.1f} s, {megabytes(dashboard):.0f} MB")
    assert paint < PAINT_OF_A_COMPARISON
    assert again < A_LONG_LOG * 3
    assert megabytes(dashboard) < MEGABYTES
