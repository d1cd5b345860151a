"""The report as colleagues open it: a file in a browser, which asks nobody for anything."""

from __future__ import annotations

import os
from pathlib import Path

from browser.conftest import Visitor
from browser.reviewed import SWEEP, Reviewed
from browser.waiting import until
from support.commands import Commands


def written(commands: Commands, reviewed: Reviewed, folder: Path, *arguments: str) -> Path:
    """What the command writes."""
    path = folder / "report.html"
    command = ["report", *arguments, "--runs-dir", reviewed.runs_dir, "-o", path, "--force"]
    said = commands(*command, cwd=folder, env=os.environ)
    assert said.code == 0, said
    return path


def test_a_report_that_was_sent(
    visitor: Visitor, dashboard_commands: Commands, reviewed: Reviewed, tmp_path: Path
) -> None:
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    note = "Look at <b>the second</b>."
    path = written(dashboard_commands, reviewed, tmp_path, "small", "resumed", "broken", "changed", "--note", note)
    page = visitor(path.as_uri())
    page.locator(".chart").first.scroll_into_view_if_needed()
    page.wait_for_selector(".chart .main-svg")
    assert page.get_by_text(note).is_visible()
    assert page.get_by_text("no <b>weights</b> & no luck").count() > 1
    assert page.locator("b").count() == 0
    assert page.get_by_label("TFLOP/s per process").count() > 0
    assert "TFLOP/s per GPU" not in page.content(), "they trained on the CPU"
    visitor.photograph("report")
    page.get_by_role("button", name="Switch").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    stands_on_paper(visitor)
    assert page.pdf(format="A4").startswith(b"%PDF")
    visitor.photograph("dark")
    page.set_viewport_size({"width": 390, "height": 800})
    until(page, "document.documentElement.scrollWidth <= innerWidth")
    visitor.photograph("phone")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def stands_on_paper(visitor: Visitor) -> None:
    """Every chart is whole on a light page, those that were never in sight too, without waiting for a script."""
    page = visitor.page
    size = page.viewport_size
    charts, drawings = page.locator(".chart"), page.locator(".drawing")
    assert drawings.count() == charts.count() > 20
    assert not any(each.is_visible() for each in drawings.all())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})  # of A4 without margins of 1 cm
    assert not any(each.is_visible() for each in [*charts.all(), page.get_by_role("button", name="Switch")])
    for drawing in drawings.all():
        box, inside = drawing.bounding_box(), drawing.locator("svg").bounding_box()
        assert box is not None
        assert inside is not None
        assert 0 <= box["x"] <= inside["x"]
        assert inside["x"] + inside["width"] <= box["x"] + box["width"] <= 718
        assert drawing.locator("polyline, polygon, circle").count() > 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    visitor.photograph("paper")
    page.emulate_media(media="screen")
    assert size is not None
    page.set_viewport_size(size)


def test_a_light_report_on_a_sweep(
    visitor: Visitor, dashboard_commands: Commands, reviewed: Reviewed, tmp_path: Path
) -> None:
    path = written(dashboard_commands, reviewed, tmp_path, SWEEP, "--light")
    assert path.stat().st_size < 1_000_000
    page = visitor(path.as_uri())
    assert page.get_by_role("heading", level=1).inner_text() == f"Sweep {SWEEP}"
    assert page.get_by_role("heading", level=2).count() == 1 + 12
    loss = page.get_by_role("img", name="Loss").first
    assert loss.locator("polyline").count() >= 12 + 11  # of the failed cell there is no validation loss
    # Nothing that is written under a chart is cut at its foot.
    foot = "it => it.getBBox().y + it.getBBox().height <= it.ownerSVGElement.viewBox.baseVal.height"
    assert all(text.evaluate(foot) for text in loss.locator("text").all())
    # Of so many runs each is a row.
    measures = page.get_by_role("table", name="Results")
    assert measures.get_by_role("row").count() == 1 + 12
    assert measures.get_by_label("best").count() >= 1
    visitor.photograph("light")
    page.set_viewport_size({"width": 390, "height": 800})
    until(page, "document.documentElement.scrollWidth <= innerWidth")
    visitor.photograph("phone")
