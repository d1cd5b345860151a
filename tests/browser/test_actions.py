"""Actions: shown and done only where they are allowed, by the commands that a person would type, and by nobody else."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import FAILED_CELL, Reviewed
from browser.waiting import wait_until
from playwright.sync_api import expect
from support.training import events, tiny_job

from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.states import cell_statuses


@pytest.fixture(scope="module")
def own(reviewed: Reviewed, tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    return reviewed.copied(tmp_path_factory.mktemp("acting"))


@pytest.fixture(scope="module")
def acting(dashboards: Dashboards, own: Reviewed) -> Dashboard:
    return dashboards.start(own.runs_dir, "--allow-actions")


def answer(
    dashboard: Dashboard,
    method: str,
    path: str,
    fields: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str, dict[str, str]]:
    """What the server says to a request that no browser would make: status, body and headers."""
    connection = http.client.HTTPConnection(urlsplit(dashboard.address).netloc.replace("0.0.0.0", "127.0.0.1"))
    try:
        shown = {"Authorization": f"Bearer {dashboard.token}"} if dashboard.token else {}
        sent = {"Content-Type": "application/x-www-form-urlencoded", **shown, **(headers or {})}
        connection.request(method, path, urlencode(fields or {}), sent)
        response = connection.getresponse()
        return response.status, response.read().decode(), {key.lower(): value for key, value in response.getheaders()}
    finally:
        connection.close()


def address_of(run: RunDir, action: str) -> str:
    return f"/runs/{run.name}/{run.run_id}/actions/{action}"


def mark_of(dashboard: Dashboard, run: RunDir) -> str:
    _, page, _ = answer(dashboard, "GET", address_of(run, "resume"))
    found = re.search(r'name="mark" value="([0-9a-f]{64})"', page)
    assert found, page
    return found.group(1)


def test_without_leave_nothing_can_be_done(visitor: Visitor, reviewing: Dashboard, reviewed: Reviewed) -> None:
    run = reviewed.diverged
    page = visitor(f"{reviewing.address}/runs/{run.name}/{run.run_id}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.get_by_role("link", name="Resume").count() == 0
    assert page.locator("form[method=post]").count() == 0
    for path in (address_of(run, "resume"), "/sweeps/rates/actions/retry"):
        for method in ("GET", "POST"):
            status, text, _ = answer(reviewing, method, path)
            assert status == 403
            assert "start it with --allow-actions" in text
    assert len(events(run, "launched")) == 1


def test_forms_of_others_do_nothing(acting: Dashboard, own: Reviewed) -> None:
    run = own.diverged
    path, mark = address_of(run, "resume"), mark_of(acting, own.diverged)
    host = urlsplit(acting.address).netloc
    elsewhere = {"Origin": "http://evil.example"}
    assert answer(acting, "POST", path)[0] == 403
    assert answer(acting, "POST", path, {"mark": "0" * 64})[0] == 403
    assert answer(acting, "POST", path, {"mark": mark}, elsewhere)[0] == 403
    assert answer(acting, "POST", path, {"mark": mark}, {"Origin": "null"})[0] == 403
    assert answer(acting, "POST", path, {"mark": mark}, {"Origin": f"http://{host}", "Host": "evil.example"})[0] == 400
    assert answer(acting, "POST", path, {"mark": mark, "padding": "x" * 70_000})[0] == 413
    assert answer(acting, "GET", path, headers={"Host": "rebound.example:80"})[0] == 400
    for mistaken in ("nothing", "cancel"):
        assert answer(acting, "POST", address_of(run, mistaken), {"mark": mark})[0] in (404, 409)
    assert answer(acting, "POST", address_of(own.completed, "resume"), {"mark": mark})[0] == 409
    assert acting.token is not None, "whoever shares a login node reaches its loopback address"
    assert answer(acting, "POST", path, {"mark": mark}, {"Authorization": ""})[0] == 401
    assert len(events(run, "launched")) == 1


def test_what_a_page_says_was_done_is_our_own_word(acting: Dashboard) -> None:
    _, text, _ = answer(acting, "GET", "/?said=All+is+lost&seal=" + "0" * 64)
    assert "All is lost" not in text


def test_a_token_where_others_reach_the_server(dashboards: Dashboards, reviewed: Reviewed, visitor: Visitor) -> None:
    dashboard = dashboards.start(
        reviewed.runs_dir, "--host=0.0.0.0", "--token=abcdefghijklmnopqrstuvwxyz", "--allow-actions"
    )
    path = address_of(reviewed.diverged, "resume")
    for method in ("GET", "POST"):
        assert answer(dashboard, method, path)[0] == 401
        assert answer(dashboard, method, f"{path}?token=wrong", {"mark": "x"})[0] == 401
    status, _, headers = answer(dashboard, "GET", f"{path}?token=abcdefghijklmnopqrstuvwxyz&page=2")
    assert status == 303
    assert headers["location"] == f"{path}?page=2", "the token does not stay in the address"
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    known = {"Cookie": cookie.partition(";")[0]}
    assert answer(dashboard, "GET", path, headers=known)[0] == 200
    assert answer(dashboard, "POST", path, {"mark": "wrong"}, known)[0] == 403
    local = dashboard.address.replace("0.0.0.0", "127.0.0.1")
    page = visitor(f"{local}/?token=abcdefghijklmnopqrstuvwxyz")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert "token" not in page.url
    page.reload()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def test_cancel_then_resume(visitor: Visitor, acting: Dashboard, own: Reviewed) -> None:
    """A run is asked to stop on its page and does; then it is resumed from the table, by the real launcher."""
    with own.live(tiny_job("acted", schedule={"train_iters": 12}), seconds=0.3) as run:
        page = visitor(acting.page(f"/runs/{run.name}/{run.run_id}"))
        page.get_by_role("link", name="Cancel").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Cancel this run?")
        expect(page.locator("main")).to_contain_text(f"acted/{run.run_id}")
        visitor.photograph("cancel")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("status").first).to_contain_text("was asked to stop")
        visitor.photograph("cancelled")
        wait_until(lambda: events(run, "stop_requested"), "the stop")
        wait_until(lambda: events(run, "exited"), "the end")
    page = visitor(acting.page("/?q=acted"))
    row = page.locator("tr", has_text=f"acted/{run.run_id}")
    expect(row).to_contain_text("stopped")
    row.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status").first).to_contain_text("resuming run", timeout=120_000)
    wait_until(lambda: status_of(run).state == "completed", "the resumed run")
    assert len(events(run, "resumed")) == 1
    assert len(events(run, "launched")) == 2


def test_retry_the_failed_cell(visitor: Visitor, acting: Dashboard, own: Reviewed) -> None:
    page = visitor(acting.page("/sweeps/rates/actions/retry"))
    expect(page.locator("main")).to_contain_text("1 cell")
    with page.expect_response(re.compile("/sweeps/rates$|said="), timeout=120_000):
        page.get_by_role("button", name="Retry").click()
    expect(page.locator("body")).to_contain_text(re.compile("sweep rates"), timeout=120_000)

    def state() -> str:
        planned = own.sweep.planned()
        return next(c.state for c in cell_statuses(own.sweep, planned) if c.entry.name == FAILED_CELL)

    wait_until(lambda: state() == "completed", "the cell")
    assert answer(acting, "GET", "/sweeps/rates/actions/retry")[0] == 409


def test_no_action_for_what_cannot_be_read(acting: Dashboard, own: Reviewed, tmp_path: Path) -> None:
    broken = own.broken
    broken.resolved().write_text("{")
    assert answer(acting, "GET", address_of(broken, "resume"))[0] == 409
