"""The pages in a real browser, over run directories of real trainings."""

from __future__ import annotations

from browser.conftest import Dashboard, Visitor
from browser.reviewed import Reviewed


def test_a_run_and_its_curves(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    run = reviewed.completed
    page = visitor(reviewing.address)
    page.get_by_role("link", name=f"{run.name}/{run.run_id}").click()
    page.wait_for_selector(".chart .main-svg")
    assert run.name in page.get_by_role("heading", level=1).inner_text()
    visitor.photograph("run")
