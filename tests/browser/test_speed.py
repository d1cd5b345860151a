"""A folder of 2,000 runs, 50 of them with 100,000 measured steps, and one of 5,000: pages are there at once, in little
memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.conftest import Dashboard, Dashboards, Visitor
from playwright.sync_api import Page, expect
from support.commands import Commands
from support.many_runs import THOUSANDS, Thousands, copies_of_kept_runs
from support.pace import slowness

pytestmark = [pytest.mark.alone, pytest.mark.slow("2,000 runs are made and read")]

RUNS, LONG, STEPS = 2000, 50, 100_000
PAINT_OF_THE_RUNS, PAINT_OF_A_RUN, PAINT_OF_A_COMPARISON = 1.0, 1.5, 3.0
"""Seconds, at the promised pace."""
CURVES = 8.0
"""Seconds, at that pace, from opening the page of a run of 100,000 steps, which the server reads first."""
MEGABYTES, MEGABYTES_OF_MEASUREMENTS = 400, 330
"""Of a server; of one that has many measurements in memory and few runs, less than another takes for 5,000 runs."""
PAINTED = 3
"""Pages that are looked at, of which the slowest or the median counts."""
COMPARED = 10
"""One more than the server keeps the measurements of."""
A_LONG_LOG = 4
"""Seconds to read one, at that pace."""


@pytest.fixture
def own_dashboards(dashboard_commands: Commands) -> Iterator[Dashboards]:
    """Dashboards that end with the test: they would go on to read all that was measured. Ask for them before `visitor`,
    whose page would miss them.
    """
    made = Dashboards(dashboard_commands, {})
    yield made
    made.end()


@pytest.fixture(scope="module")
def long(
    dashboard_commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Dashboard, list[str]]]:
    """A dashboard of long runs, and where each of their pages is."""
    runs = copies_of_kept_runs(tmp_path_factory.mktemp("long"), COMPARED, long=COMPARED, steps=STEPS)
    made = Dashboards(dashboard_commands, {})
    yield made.start(runs[0].path.parent.parent), [f"{run.name}/{run.run_id}" for run in runs]
    made.end()


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder of RUNS that nobody has read, made while `thousands` are read by one process: another core is idle."""
    folder = tmp_path_factory.mktemp("new")
    program = (
        "import pathlib, sys; from support.many_runs import copies_of_kept_runs\n"
        f"copies_of_kept_runs(pathlib.Path(sys.argv[1]), {RUNS}, long={LONG}, steps={STEPS})"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=Path(__file__).parents[1]) as making:
        request.getfixturevalue("thousands")
    assert making.returncode == 0
    return folder / "runs"


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


def test_a_server_that_has_just_started(own_dashboards: Dashboards, visitor: Visitor, new: Path) -> None:
    """Its first page is there before it knows all runs; what it knows is the newest."""
    dashboard = own_dashboards.start(new)
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


def test_a_server_that_starts_with_an_index(own_dashboards: Dashboards, visitor: Visitor, thousands: Thousands) -> None:
    """Of 5,000 runs: its pages have all of them at once."""
    dashboard = own_dashboards.start(thousands.folder)
    page = visitor(dashboard.address)
    cold = first_paint(page)
    expect(page.get_by_role("link", name=f"all {THOUSANDS}")).to_be_visible()
    warm = [first_paint(visitor(dashboard.address)) for _ in range(PAINTED)]
    print(f"first paint {cold:.2f} s, then {warm}, {megabytes(dashboard):.0f} MB")
    assert cold < PAINT_OF_THE_RUNS
    assert sorted(warm)[PAINTED // 2] < PAINT_OF_THE_RUNS, warm
    assert megabytes(dashboard) < MEGABYTES


def test_runs_of_many_steps(visitor: Visitor, long: tuple[Dashboard, list[str]]) -> None:
    dashboard, keys = long
    paints, curves = [], []
    for key in keys[:PAINTED]:
        begun = time.monotonic()
        page = visitor(f"{dashboard.address}/runs/{key}")
        paints.append(first_paint(page))
        page.wait_for_selector(".chart .main-svg")
        curves.append((time.monotonic() - begun) / slowness())
    print(f"first paint {max(paints):.2f} s, curves {max(curves):.1f} s, {megabytes(dashboard):.0f} MB")
    assert max(paints) < PAINT_OF_A_RUN
    assert max(curves) < CURVES
    assert megabytes(dashboard) < MEGABYTES_OF_MEASUREMENTS


def test_many_long_runs_beside_each_other(visitor: Visitor, long: tuple[Dashboard, list[str]]) -> None:
    """Each of their logs is read for all charts together, and none of them for a chart that is asked for again."""
    dashboard, keys = long
    query = "&".join(f"run={key}" for key in keys)
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
    assert megabytes(dashboard) < MEGABYTES_OF_MEASUREMENTS
