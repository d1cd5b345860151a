"""What a run reads, source by source, in a real browser."""

from __future__ import annotations

from browser.conftest import Dashboard, Visitor
from browser.reviewed import Reviewed
from browser.waiting import until


def test_the_sources_of_a_run(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    run = reviewed.completed
    page = visitor(f"{reviewing.address}/runs/small/{run.run_id}/data")
    # 60 steps of 8 samples, three of four from the first source.
    cells = page.get_by_role("row").filter(has_text="json").get_by_role("cell").all_inner_texts()
    assert cells[:2] == ["3", "75.0 %"]
    assert (cells[4], cells[5]) == ("360", f"{360 * 64:,}")
    assert page.locator("meter").count() == 2
    assert page.get_by_text("Warning:").count() > 0  # one document is little to evaluate on
    page.wait_for_selector(".chart .main-svg")
    visitor.chart_fills()
    visitor.photograph("data")
    page.set_viewport_size({"width": 390, "height": 800})
    until(page, "document.documentElement.scrollWidth <= innerWidth")
    visitor.chart_fills()
    visitor.photograph("phone")
    page.goto(page.url.replace("/small/" + run.run_id, f"/resumed/{reviewed.resumed.run_id}"))
    assert page.get_by_text("random token ids").is_visible()
