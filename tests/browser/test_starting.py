"""Starting runs and sweeps from the pages, by a file or by another run; the plan and its warnings come first."""

from __future__ import annotations

import re

import pytest
from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import Reviewed
from browser.test_actions import answer
from browser.waiting import wait_until
from playwright.sync_api import expect
from support.training import tiny_job

from orchestrator.launch.runs import all_runs
from orchestrator.launch.states.run_states import status_of
from orchestrator.spec.loading import dump_resolved, load_resolved
from orchestrator.sweeps.ledger import sweep_dir
from orchestrator.sweeps.states import cell_statuses


@pytest.fixture(scope="module")
def own(reviewed: Reviewed, tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    return reviewed.copied(tmp_path_factory.mktemp("starting"))


@pytest.fixture(scope="module")
def acting(dashboards: Dashboards, own: Reviewed) -> Dashboard:
    """Its project is the folder of the runs: there it finds job files."""
    (own.runs_dir / "new.yaml").write_text(dump_resolved(tiny_job("new", schedule={"train_iters": 3})))
    (own.runs_dir / "pair.yaml").write_text("base: new.yaml\nname: pair\ngrid: {runtime.seed: [1, 2]}\n")
    (own.folder / "above.yaml").write_text((own.runs_dir / "new.yaml").read_text())
    return dashboards.start(own.runs_dir, "--allow-actions")


def test_a_job_file_and_then_its_run_again(visitor: Visitor, acting: Dashboard, own: Reviewed) -> None:
    """With keys alone. What was checked is what is started."""
    page = visitor(acting.page("/"))
    page.get_by_role("link", name="Start a run…").press("Enter")
    expect(page.get_by_label("File")).to_be_focused()
    page.keyboard.type("new.yaml")
    page.get_by_label("Changes").fill("lrr=1e-3")
    page.get_by_role("button", name="Check").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("lrr")
    assert page.get_by_role("button", name="Start").count() == 0
    page.get_by_label("Changes").fill("lr=2e-3\n\n runtime.seed=5 ")
    page.get_by_role("button", name="Check").press("Enter")
    expect(page.locator("pre.output")).to_contain_text("new")
    expect(page.locator("code").last).to_contain_text("--set lr=2e-3 --set runtime.seed=5 --detach")
    visitor.photograph("start")
    visitor.narrow()
    visitor.photograph("start-phone")
    assert all_runs(own.runs_dir / "new") == []
    page.get_by_role("button", name="Start").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("new", timeout=120_000)
    [run] = [run for run in all_runs(own.runs_dir) if run.name == "new"]
    wait_until(lambda: status_of(run).state == "completed", "the run")
    job = load_resolved(run.resolved())
    assert (job.optimizer.lr, job.runtime.seed) == (2e-3, 5)

    page.set_viewport_size({"width": 1400, "height": 1000})
    page = visitor(f"{acting.address}/runs/new/{run.run_id}")
    page.get_by_role("link", name="Start again…").click()
    page.get_by_label("Changes").fill("schedule.train_iters=4")
    page.get_by_role("button", name="Check").click()
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("new", timeout=120_000)
    [again] = [each for each in all_runs(own.runs_dir) if each.name == "new" and each != run]
    wait_until(lambda: status_of(again).state == "completed", "the second run")
    job = load_resolved(again.resolved())
    assert (job.optimizer.lr, job.schedule.train_iters) == (2e-3, 4)


def test_a_sweep_file(visitor: Visitor, acting: Dashboard, own: Reviewed) -> None:
    page = visitor(acting.page("/start"))
    page.get_by_label("File").fill("pair.yaml")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("pre.output")).to_contain_text("2")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("pair", timeout=120_000)
    sweep = sweep_dir("pair", own.runs_dir)
    wait_until(lambda: {cell.state for cell in cell_statuses(sweep, sweep.planned())} == {"completed"}, "the cells")


@pytest.mark.parametrize(
    "fields",
    [
        {"file": "../above.yaml"},
        {"file": "/etc/passwd"},
        {"file": "link.yaml"},
        {"file": "new.yaml\0"},
        {"file": ""},
        {"file": "new.yaml", "changes": "--help"},
        {"file": "new.yaml", "changes": "name"},
        {"file": "new.yaml", "changes": "a=1\n" * 101},
        {"file": "new.yaml", "place": "cluster:../x"},
        {"file": "new.yaml", "place": "cluster:--help"},
        {"file": "new.yaml", "place": "cluster:unknown"},
        {"run": "new/../.."},
    ],
)
def test_what_cannot_be_started(acting: Dashboard, own: Reviewed, fields: dict[str, str]) -> None:
    link = own.runs_dir / "link.yaml"
    if not link.exists():
        link.symlink_to(own.folder / "above.yaml")
    _, form, _ = answer(acting, "GET", "/start")
    found = re.search(r'name="mark" value="([0-9a-f]{64})"', form)
    assert found is not None
    before = len(all_runs(own.runs_dir))
    for path in ("/start", "/start/now"):
        has_nul = "\0" in fields.get("file", "")
        assert answer(acting, "POST", path, fields)[0] == (400 if has_nul else 403), "a form of another page"
        status, text, _ = answer(acting, "POST", path, {"mark": found.group(1), **fields})
        assert status == (404 if "run" in fields else 400 if has_nul else 200)
        assert "run" in fields or has_nul or 'role="alert"' in text
        assert "Traceback" not in text
    assert len(all_runs(own.runs_dir)) == before


def test_who_may_only_look(reviewing: Dashboard) -> None:
    for method, path in (("GET", "/start"), ("POST", "/start"), ("POST", "/start/now")):
        assert answer(reviewing, method, path)[0] == 403
