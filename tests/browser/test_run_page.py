"""The page of one run, section by section, over real trainings."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import Reviewed
from browser.waiting import wait_until
from playwright.sync_api import Page, expect
from support.training import tiny_job

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.records.machine_use import MachineUse


@pytest.fixture(scope="module")
def own(reviewed: Reviewed, tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    return reviewed.copied(tmp_path_factory.mktemp("run-page"))


@pytest.fixture(scope="module")
def shown(dashboards: Dashboards, own: Reviewed) -> Dashboard:
    return dashboards.start(own.runs_dir)


def place(shown: Dashboard, run: RunDir, section: str = "") -> str:
    return f"{shown.address}/runs/{run.name}/{run.run_id}{section}"


def traces(page: Page, chart: str) -> list[dict[str, Any]]:
    """What plotly has drawn of a chart, once it is there."""
    page.locator(f'[data-figure$="/figure/{chart}"]').scroll_into_view_if_needed()
    page.wait_for_selector(f'[data-figure$="/figure/{chart}"] .main-svg')
    script = """chart => document.querySelector(`[data-figure$="/figure/${chart}"] .js-plotly-plot`).data
        .map(({name, meta, x, y}) => ({name, meta, x: [...x], y: [...y]}))"""
    found: list[dict[str, Any]] = page.evaluate(script, chart)
    return found


def test_a_resumed_run_has_marks_and_its_course_can_be_drawn_in_other_ways(
    shown: Dashboard, own: Reviewed, visitor: Visitor
) -> None:
    run = own.resumed
    page = visitor(place(shown, run))
    loss = traces(page, "loss")
    assert loss[0]["x"] == list(range(1, 41))
    assert [trace["meta"] for trace in loss if trace.get("meta")] == ["undone", "ticks"]
    expect(page.locator(".chart .annotation-text").first).to_be_visible()
    expect(page.locator("#time")).to_contain_text("goodput")
    visitor.photograph("resumed")

    page.get_by_label("x axis").select_option("tokens")
    page.get_by_label("smoothing").fill("0.5")
    page.get_by_label("perplexity").check()
    expect(page).to_have_url(re.compile(r"x=tokens&smoothing=0\.5&perplexity=true"))
    wait_until(
        lambda: page.evaluate("document.querySelector('.js-plotly-plot').layout.title.text == 'Perplexity'"), "the page"
    )
    page.reload()
    expect(page.get_by_label("x axis")).to_have_value("tokens")
    expect(page.get_by_label("perplexity")).to_be_checked()
    assert traces(page, "loss")[0]["x"] == [step * 8 * 64 for step in range(1, 41)]


def test_speeds_of_a_run_on_the_cpu_are_those_of_a_process(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    page = visitor(place(shown, own.completed))
    traces(page, "tflops")
    chart = page.get_by_label("TFLOP/s per process")
    expect(chart.locator(".gtitle")).to_have_text("TFLOP/s per process")
    assert "per GPU" not in page.content()
    page.goto(place(shown, own.completed, "/plan"))
    expect(page.get_by_role("rowheader", name="TFLOP/s per process")).to_be_visible()
    assert "per GPU" not in page.content()


def test_zooming_asks_for_the_points_between(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    page = visitor(place(shown, own.resumed))
    traces(page, "loss")
    with page.expect_response(re.compile(r"figure/loss\?.*from=10&to=20")):
        page.evaluate(
            "Plotly.relayout(document.querySelector('.js-plotly-plot'), {'xaxis.range': [10, 20]})"
            " && Plotly.relayout(document.querySelector('.js-plotly-plot'),"
            " {'xaxis.range[0]': 10, 'xaxis.range[1]': 20})"
        )
    wait_until(lambda: page.evaluate("document.querySelector('.js-plotly-plot').data[0].x.length == 13"), "the page")


def test_a_curve_that_does_not_come_is_said_aloud(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    visitor.page.route("**/figure/lr*", lambda route: route.fulfill(body="no figure"))
    page = visitor(place(shown, own.changed))
    chart = page.locator('[data-figure$="/figure/lr"]')
    chart.scroll_into_view_if_needed()
    expect(chart.get_by_role("status")).to_contain_text("not up to date")
    visitor.photograph("no-curve")


def test_nothing_new_is_not_sent_again(shown: Dashboard, own: Reviewed) -> None:
    address = place(shown, own.completed, "/figure/loss?x=steps")
    with urllib.request.urlopen(address) as answer:
        assert json.load(answer)["data"]
        tag = answer.headers["ETag"]
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(address, headers={"If-None-Match": tag}))
    assert error.value.code == 304
    error.value.close()


def test_a_failed_run_says_why_and_shows_the_lines(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    run = own.broken
    page = visitor(place(shown, run))
    why = page.get_by_role("region", name="Why it ended")
    expect(page.locator("#head")).to_contain_text("no <b>weights</b> & no luck")
    expect(why).to_contain_text("ValueError: no <b>weights</b> & no luck")
    expect(why).to_contain_text(f"orchestrator logs {run.run_id}")
    assert page.locator("main b", has_text="weights").count() == 0
    visitor.photograph("failed")

    page.get_by_role("link", name="Logs", exact=True).first.click()
    log = page.get_by_role("region", name="logs/rank-00000.log")
    expect(log.locator("tr").last).to_contain_text("no <b>weights</b> & no luck")
    assert 100 < log.locator("tr").count() <= 200
    number = int(log.locator("tr").first.locator(".where").inner_text())
    page.get_by_role("link", name="Earlier").click()
    expect(page.locator(".log tr").last.locator(".where")).to_have_text(str(number - 1))
    page.get_by_role("link", name="Later").click()
    expect(page.locator(".log tr").first.locator(".where")).to_have_text(str(number))
    page.get_by_role("searchbox", name="search").fill(r"penalties\.py.*line 20")
    page.get_by_label("regular expression").check()
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("status")).to_contain_text("1 line with")
    page.locator(".log .where a").click()
    expect(page.locator(".log tr:target")).to_contain_text("line 20, in loss")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_live_run_moves_on_while_one_looks(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    with own.live(tiny_job("watched", schedule={"train_iters": 9000}), seconds=0.4) as run:
        page = visitor(place(shown, run))
        first = len(traces(page, "loss")[0]["x"])
        expect(page.locator("#head .state")).to_have_text("running")
        expect(page.locator("#head .state")).to_have_css("animation-name", "none")
        page.emulate_media(reduced_motion="no-preference")
        expect(page.locator("#head .state")).to_have_css("animation-name", "pulse")
        page.emulate_media(reduced_motion="reduce")
        wait_until(
            lambda: page.evaluate(f"document.querySelector('.js-plotly-plot').data[0].x.length > {first}"), "the page"
        )
        before = page.locator("#head b").inner_text()
        expect(page.locator("#head b")).not_to_have_text(before)
        with page.expect_response(re.compile(r"/head\?tab=events$")):
            page.goto(place(shown, run, "/events"))
        before = page.locator("#head b").inner_text()
        expect(page.locator("#head b")).not_to_have_text(before)
        page.goto(place(shown, run, "/logs?file=logs/rank-00000.log"))
        lines = page.locator(".log tr").count()
        wait_until(lambda: page.evaluate(f"document.querySelectorAll('.log tr').length > {lines}"), "the page")


COUNTS_WHAT_IS_DONE_AT_ONCE = """
window.atOnce = 0;
const plain = window.setTimeout;
window.setTimeout = (call, wait, ...rest) => {
    if (wait === 0) window.atOnce += 1;
    return plain(call, wait, ...rest);
};
"""


def test_a_log_that_grows_fast_is_followed(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    log = own.resumed.logs / "rank-00000.log"
    visitor.page.add_init_script(COUNTS_WHAT_IS_DONE_AT_ONCE)
    page = visitor(place(shown, own.resumed, "/logs?file=logs/rank-00000.log"))
    page.get_by_label("follow").check()
    with open(log, "ab", buffering=0) as file:
        file.write("".join(f"line {number} at once\n" for number in range(4000)).encode())
    expect(page.locator(".log tr").last).to_contain_text("line 3999 at once")
    # A look brings 200 of them, and the next one does not wait.
    assert page.evaluate("atOnce") >= 19


def test_the_machines_of_a_run(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    run = own.changed
    use = MachineUse(run.path)
    run.system.mkdir(exist_ok=True)
    for node in (0, 1):
        records = (
            {
                "time": time.time() - 60 + 10 * step,
                "iteration": step,
                "host": f"<b>n{node}</b>",
                "values": use.measure(),
            }
            for step in range(4)
        )
        (run.system / f"node-{node:05d}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    page = visitor(place(shown, run))
    page.get_by_role("link", name="Machines", exact=True).click()
    row = page.locator("#machines tbody tr").last
    expect(row).to_contain_text("<b>n1</b>")
    expect(row).to_contain_text("GB")
    page.get_by_label("Processor utilisation").locator(".main-svg").first.wait_for()
    chart = page.get_by_label("Processor utilisation")
    assert chart.locator(".scatterlayer .trace").count() == 2
    expect(chart.locator(".legendtext").last).to_have_text("1 <b>n1</b>")
    visitor.photograph("machines")
    visitor.narrow()
    visitor.photograph("machines-phone")


def test_spec_plan_checkpoints_events_and_code(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    changed = own.changed
    page = visitor(place(shown, changed, "/spec"))
    row = page.get_by_role("row").filter(has_text="the learning rate of the steps to come changes")
    expect(row).to_contain_text("optimizer.lr")
    expect(row).to_contain_text("changes the trajectory")
    page.get_by_role("searchbox", name="search").fill("train_iters")
    expect(page.locator("#fields")).to_contain_text("1 of")
    visitor.photograph("spec")

    page.goto(place(shown, changed, f"/spec?against=resumed/{own.resumed.run_id}&q=train_iters"))
    expect(page.get_by_role("heading", name="Differences from resumed/")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="another name is another job")).to_contain_text("forbidden")

    page.goto(place(shown, own.completed, "/plan"))
    expect(page.get_by_role("row").filter(has_text="parameters").last).to_contain_text("1")
    expect(page.get_by_role("img", name=re.compile("1F1B: .* through 2 stages"))).to_be_visible()
    expect(page.get_by_role("img", name="Node 0: ranks 0 to 1")).to_be_visible()
    visitor.photograph("plan")

    page.goto(place(shown, own.completed, "/checkpoints"))
    expect(page.locator(".condition.whole")).to_have_count(3)
    page.goto(place(shown, own.resumed, "/events"))
    expect(page.locator("#head")).to_contain_text("last started")
    page.set_viewport_size({"width": 390, "height": 800})
    event = page.locator("#events tbody tr").first
    said = event.locator("td").last.bounding_box()
    assert said is not None
    assert said["x"] + said["width"] <= 390
    assert said["width"] > 300
    header = page.locator(".bar").bounding_box()
    assert header is not None
    assert header["height"] < 60
    visitor.photograph("events-phone")
    page.set_viewport_size({"width": 1400, "height": 1000})
    expect(page.get_by_role("cell", name="resumed from the checkpoint of iteration 20")).to_be_visible()
    page.get_by_label("kind").select_option("trouble")
    expect(page.get_by_role("status")).to_contain_text("1 of")
    page.goto(place(shown, own.completed, "/code"))
    expect(page.get_by_role("row").filter(has_text="megatron-core").first).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    for section in ("", "/spec", "/plan", "/checkpoints", "/events", "/code"):
        page.goto(place(shown, own.completed, section))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), section
        visitor.photograph(f"phone{section.replace('/', '-')}")


SECTIONS = (
    "",
    "/head",
    "/time",
    "/logs",
    "/events",
    "/checkpoints",
    "/data",
    "/machines",
    "/plan",
    "/spec",
    "/code",
    "/figure/loss",
)


def answer_of(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def damage(run: RunDir, kind: str) -> None:
    if kind == "torn":
        for path in (run.events_file, run.metrics_file):
            path.write_bytes(path.read_bytes()[:-20] + b'\n{"event": 3, "time": "x"}\n[]\nnull\n\xff\xfe')
    elif kind == "nonsense":
        run.events_file.write_text(
            '{"event": "exited", "time": [], "cause": {}, "iteration": "x", "evidence": 3}\n' * 3
        )
        run.resolved().write_text('{"name": ["<script>"]}')
        (run.path / "code.json").write_text('{"repositories": {"a": 1}}')
        (run.path / "environment.json").write_text("[]")
        (run.path / "sweep.json").write_text('{"sweep": 3, "cell": {}}')
    else:
        for path in (run.events_file, run.metrics_file, run.job_yaml):
            path.unlink()
        Path(run.events_file).mkdir()


@pytest.mark.parametrize("kind", ["torn", "nonsense", "missing"])
def test_every_section_holds_with_a_damaged_run(shown: Dashboard, reviewed: Reviewed, own: Reviewed, kind: str) -> None:
    [source] = (reviewed.runs_dir / "changed").glob("*")
    target = own.runs_dir / f"damaged-{kind}" / source.name
    shutil.copytree(source, target)
    run = RunDir(target)
    damage(run, kind)
    found = {section: answer_of(place(shown, run, section)) for section in SECTIONS}
    assert found == dict.fromkeys(SECTIONS, 200)
    shutil.rmtree(target)
    assert {answer_of(place(shown, run, section)) for section in SECTIONS} == {404}
