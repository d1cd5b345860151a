"""The pages in a real browser, over run directories of real trainings."""

from __future__ import annotations

from pathlib import Path

from browser.conftest import Dashboards, Visitor
from support.faults import Ranks
from support.training import four_layer_job

from orchestrator.launch.runs import create_run


def test_a_run_and_its_curves(dashboards: Dashboards, visitor: Visitor, ranks: Ranks, tmp_path: Path) -> None:
    job = four_layer_job("first")
    run = create_run(job, "name: first\n", tmp_path)
    ranks.must_train(run, job)
    page = visitor(dashboards.start(tmp_path).address)
    page.get_by_role("link", name=f"first/{run.run_id}").click()
    page.wait_for_selector(".chart .main-svg")
    assert "first" in page.get_by_role("heading", level=1).inner_text()
    visitor.photograph("run")
