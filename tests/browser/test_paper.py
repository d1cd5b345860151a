"""Pages of the dashboard on paper: white, without navigation, and nothing is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser.conftest import Dashboard, Visitor
from browser.reviewed import SWEEP, Reviewed
from browser.waiting import until

from orchestrator.run_directory.rundir import RunDir

UPRIGHT, ACROSS = 700, 960
"""Pixels between the margins of letter paper, of which A4 has about as many."""
CUT = """() => [...document.querySelectorAll("main *:not(.hidden):not(.chart *)")].filter((each) => {
    const place = each.getBoundingClientRect(), look = getComputedStyle(each);
    const scrolls = /auto|scroll|hidden/.test(look.overflowX + look.overflowY) && place.width > 1;
    const hides = scrolls && (each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1);
    return place.width > 0 && look.display !== "inline" && (place.right > innerWidth + 1 || hides);
}).map((each) => each.outerHTML.slice(0, 120))"""
TO_PRESS = "nav a:not(.sections a[aria-current], .chips a), button, .button, input, select, .toggle"


def of(run: RunDir, section: str = "") -> str:
    return f"/runs/{run.name}/{run.run_id}{section}"


PAGES: dict[str, Callable[[Reviewed], str]] = {
    "runs": lambda reviewed: "/?cells=all",
    "sweeps": lambda reviewed: "/sweeps",
    "sweep": lambda reviewed: f"/sweeps/{SWEEP}",
    "compare": lambda reviewed: (
        "/compare?"
        + "&".join(f"run={run.name}/{run.run_id}" for run in (reviewed.completed, reviewed.resumed, reviewed.diverged))
    ),
    "cluster": lambda reviewed: "/cluster",
    "run": lambda reviewed: of(reviewed.resumed),
    "data": lambda reviewed: of(reviewed.completed, "/data"),
    "machines": lambda reviewed: of(reviewed.completed, "/machines"),
    "logs": lambda reviewed: of(reviewed.resumed, "/logs"),
    "events": lambda reviewed: of(reviewed.diverged, "/events"),
    "checkpoints": lambda reviewed: of(reviewed.completed, "/checkpoints"),
    "spec": lambda reviewed: of(reviewed.completed, "/spec"),
    "plan": lambda reviewed: of(reviewed.completed, "/plan"),
    "code": lambda reviewed: of(reviewed.completed, "/code"),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_on_paper(name: str, reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    page = visitor.page
    page.emulate_media(color_scheme="dark")
    visitor(reviewing.page(PAGES[name](reviewed)))
    page.wait_for_load_state("networkidle")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": ACROSS if page.locator(".broad").count() else UPRIGHT, "height": 900})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(0, 0, 0)"
    assert not [each for each in page.locator(TO_PRESS).all() if each.is_visible()]
    assert page.evaluate(CUT) == []
    for chart in page.locator(".chart").all():  # drawn, those that were never in sight too
        box = chart.locator(".main-svg").first.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= UPRIGHT
    assert not page.locator("main details:not([open], .help, .picker)").count()
    visitor.photograph(name)


def test_a_page_that_was_printed_is_as_before(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    page = visitor.page
    page.emulate_media(color_scheme="dark")
    visitor(reviewing.page(of(reviewed.resumed)))
    page.wait_for_selector(".chart .main-svg")
    wide = "document.querySelector('.chart .main-svg').getBoundingClientRect().width"
    before = page.evaluate(wide)
    assert page.pdf(prefer_css_page_size=True).count(b"/MediaBox [0 0 792 612]") == 0
    until(page, f"{wide} === {before}")
    assert page.evaluate("document.documentElement.dataset.theme") is None
    ink = "getComputedStyle(document.querySelector('.chart .gtitle')).fill"
    assert page.evaluate(ink) == page.evaluate("getComputedStyle(document.body).color")
    visitor(reviewing.page("/"))
    assert page.pdf(prefer_css_page_size=True).count(b"/MediaBox [0 0 792 612]") == 1, "a broad table lies across"


def test_a_figure_that_cannot_be_had_leaves_the_others(
    reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed
) -> None:
    page = visitor.page
    page.set_viewport_size({"width": 900, "height": 300})
    visitor(reviewing.page(of(reviewed.resumed)))
    page.wait_for_selector(".chart .main-svg")
    unseen = page.locator("[data-figure]:not(:has(.main-svg))")
    lost, missing = unseen.first.get_attribute("data-figure"), unseen.count()
    assert missing > 1, "some were not in sight yet"
    page.route(lambda url: lost is not None and lost in url, lambda route: route.abort())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert unseen.count() == 1
    assert "not up to date" in unseen.inner_text()
    visitor.problems.clear()  # the browser notes the lost request in its console
