"""Several runs beside each other in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import FAILED_CELL, Reviewed
from playwright.sync_api import Page, expect
from support.training import tiny_job

from orchestrator.run_directory.rundir import RunDir


def key(run: RunDir) -> str:
    return f"{run.name}/{run.run_id}"


def address(*runs: RunDir) -> str:
    return "/compare?" + "&".join(f"run={key(run)}" for run in runs)


def legend(page: Page, chart: str) -> list[str]:
    figure = page.get_by_label(chart, exact=True)
    figure.scroll_into_view_if_needed()
    figure.locator(".legendtext").first.wait_for()
    return [text or "" for text in figure.locator(".legendtext").all_text_contents()]


def colours(page: Page, chart: str) -> list[str]:
    """The colours of the lines of a chart, in the order of its curves."""
    lines = page.get_by_label(chart, exact=True).locator(".scatterlayer .trace path.js-line")
    return [str(line.evaluate("line => line.style.stroke")) for line in lines.all()]


def test_two_cells_and_only_what_differs(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    cells = [reviewed.cell("lr=3e-4,gbs=8"), reviewed.cell("lr=3e-3,gbs=8")]
    page = visitor(reviewing.address + address(*cells))
    assert legend(page, "Loss") == ["lr=0.0003", "lr=0.003"]
    assert legend(page, "Learning rate") == ["lr=0.0003", "lr=0.003"]
    assert colours(page, "Loss") == colours(page, "Learning rate")
    differs = page.get_by_label("Differences", exact=True)
    [row] = [row for row in differs.get_by_role("row").all() if "optimizer.lr" in row.inner_text()]
    assert row.inner_text().split() == ["optimizer.lr", "0.0003", "0.003"]
    assert "num_layers" not in differs.inner_text()
    measures = page.get_by_label("Results", exact=True)
    expect(measures.get_by_role("row", name=re.compile("loss at step 20"))).to_contain_text("★")
    assert measures.get_by_role("row", name=re.compile("^tokens seen")).inner_text().count("★") == 0
    visitor.photograph("compare")
    page.emulate_media(color_scheme="dark")
    visitor.narrow()
    visitor.photograph("compare-phone-dark")


def test_runs_are_added_and_removed(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    page = visitor(reviewing.address + "/compare")
    search = page.get_by_role("searchbox", name="Find")
    for run in (reviewed.completed, reviewed.changed):
        page.wait_for_selector("#offered")
        search.fill(f"{run.name} completed")
        page.get_by_role("link", name=key(run)).click()
        page.wait_for_url(re.compile(run.run_id))
        if not search.is_visible():
            page.get_by_text("Add a run").click()
    assert parse_qs(urlsplit(page.url).query)["run"] == [key(reviewed.completed), key(reviewed.changed)]
    assert legend(page, "Loss") == ["small", "changed"]
    page.get_by_role("link", name=f"Remove {key(reviewed.completed)}").click()
    page.wait_for_url(re.compile(rf"run={reviewed.changed.name}"))
    expect(page.get_by_role("main")).to_contain_text("Add a run to compare this one with.")


def test_what_is_drawn_is_in_the_address(reviewing: Dashboard, visitor: Visitor, reviewed: Reviewed) -> None:
    page = visitor(reviewing.address + address(reviewed.resumed, reviewed.changed))
    legend(page, "Loss")
    page.get_by_label("x axis").select_option("tokens")
    page.get_by_label("log scale").check()
    page.wait_for_url(re.compile("x=tokens.*log=true"))
    page.reload()
    expect(page.get_by_label("x axis")).to_have_value("tokens")
    assert legend(page, "Loss") == ["resumed", "changed"]
    expect(page.get_by_label("Loss", exact=True).locator(".xtitle")).to_have_text("tokens")


def test_it_follows_a_run_that_trains(
    dashboards: Dashboards, visitor: Visitor, reviewed: Reviewed, tmp_path: Path
) -> None:
    mine = reviewed.copied(tmp_path)
    with mine.live(tiny_job("going", schedule={"train_iters": 9000}), seconds=0.4) as run:
        page = visitor(dashboards.start(mine.runs_dir).address + address(run, mine.changed))
        steps = page.get_by_role("row", name=re.compile("^going")).get_by_role("cell").nth(2)
        link = page.get_by_role("link", name=f"Remove {key(run)}")
        link.focus()
        seen = steps.inner_text()
        expect(steps).not_to_have_text(seen)
        expect(link).to_be_focused()


def test_failed_damaged_and_missing_runs(
    dashboards: Dashboards, visitor: Visitor, reviewed: Reviewed, tmp_path: Path
) -> None:
    mine = reviewed.copied(tmp_path)
    mine.changed.resolved().write_text('{"optimizer": {"lr": ')
    mine.completed.metrics_file.unlink()
    runs = [mine.changed, mine.completed, mine.diverged, mine.broken, mine.cell(FAILED_CELL)]
    page = visitor(
        dashboards.start(mine.runs_dir).address + address(*runs) + "&run=gone/00000000&run=../x&run=%3Cscript%3E"
    )
    main = page.get_by_role("main")
    expect(main).to_contain_text("There is no run gone/00000000 in this folder.")
    expect(main).to_contain_text("There is no run <script> in this folder.")
    expect(main).to_contain_text("cannot be read")
    assert len(page.locator("#compared tbody tr").all()) == 5
    expect(page.get_by_label("Results", exact=True)).to_contain_text("tokens seen")
    visitor.narrow()
