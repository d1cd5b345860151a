"""Any metric is a chart: chosen, pinned, found, followed, compared, kept under a name; over real trainings."""

from __future__ import annotations

import json
import re
import time
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from browser.accessibility import violations
from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import SMALL, Reviewed, created, end_together
from browser.waiting import until, wait_until
from playwright.sync_api import Page, expect
from support.faults import Ranks
from support.training import four_layer_job

from orchestrator.run_directory.rundir import RunDir

# Measures of its own: what no chart of ours knows.
STEP = """
from orchestrator.runtime.steps.base import Part
from orchestrator.runtime.steps.gpt import NextToken


class Measured(NextToken):
    metrics = ("accuracy",)

    def loss(self, output, batch):
        counts = batch["loss_mask"].sum()
        return {**super().loss(output, batch), "accuracy": Part(counts * 0.25, counts)}
"""
Theme = Literal["light", "dark"]
HOSTILE = "</script><img src=x onerror=alert(1)>"
MANY = 500
PHONE, DESK = (390, 844), (1400, 1000)
BOTH_THEMES: tuple[Theme, Theme] = ("light", "dark")


@pytest.fixture(scope="module")
def own(reviewed: Reviewed, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    """The runs, and two of a step that measures its accuracy: `measured`."""
    mine = reviewed.copied(tmp_path_factory.mktemp("charts"))
    (mine.folder / "measured.py").write_text(STEP)
    program = mine.folder / "own-steps.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(mine.folder)!r})\n")
    jobs = [
        four_layer_job(
            "measured",
            runtime={"train_step": "measured:Measured"},
            optimizer={"lr": rate},
            evaluation={"eval_interval": 10, "eval_iters": 1},
            **SMALL,
        )
        for rate in (1e-3, 3e-3)
    ]
    end_together(ranks, {created(job, mine.runs_dir): "completed" for job in jobs}, inject=program)
    return mine


@pytest.fixture(scope="module")
def measured(own: Reviewed) -> list[RunDir]:
    return [RunDir(path) for path in sorted((own.runs_dir / "measured").glob("*"))]


@pytest.fixture(scope="module")
def shown(dashboards: Dashboards, own: Reviewed) -> Dashboard:
    return dashboards.start(own.runs_dir, "--allow-actions")


def key(run: RunDir) -> str:
    return f"{run.name}/{run.run_id}"


def charts(page: Page) -> list[str]:
    """The names of the charts that are shown, in their order."""
    return [chart.get_attribute("data-chart") or "" for chart in page.locator("#charts .chart").all()]


def drawn(page: Page, chart: str) -> list[list[float]]:
    """The steps of each curve of a chart, once it is drawn."""
    figure = page.locator(f'[data-chart="{chart}"]')
    figure.scroll_into_view_if_needed()
    figure.locator(".main-svg").first.wait_for()
    found: list[list[float]] = figure.evaluate(
        "it => it.querySelector('.js-plotly-plot').data.filter((trace) => !trace.meta).map((trace) => [...trace.x])"
    )
    return found


def find(page: Page, text: str) -> None:
    """Look for charts, and wait until the page shows what was found."""
    page.get_by_role("searchbox", name="charts").fill(text)
    until(page, "text => new URLSearchParams(location.search).get('find') === text", text)
    until(page, "!document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')")


def asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def write(run: RunDir, first: int, count: int, values: dict[str, float]) -> None:
    """More measurements, as a training appends them."""
    with run.metrics_file.open("a") as file:
        for step in range(first, first + count):
            record = {"time": time.time(), "iteration": step, "samples": 8 * step, "tokens": 512 * step}
            file.write(json.dumps({**record, "values": values}) + "\n")


def test_what_a_step_measures_is_a_chart_that_can_be_found_pinned_and_hidden(
    shown: Dashboard, measured: list[RunDir], visitor: Visitor
) -> None:
    page = visitor(shown.page(f"/runs/{key(measured[0])}"))
    assert {"loss", "train/accuracy", "validation/accuracy", "validation/perplexity"} <= set(charts(page))
    groups = [heading.inner_text() for heading in page.locator("#charts > h2").all()]
    assert groups[:3] == ["train", "validation", "throughput"]
    assert len(drawn(page, "train/accuracy")[0]) == 20
    [validated] = drawn(page, "validation/perplexity")
    mark = page.locator('[data-chart="validation/perplexity"] .scatterlayer .trace path.js-line')
    assert len(validated) == 2
    expect(mark.first).to_be_visible()

    # Pinned by the keyboard alone, in the order in which they were; the page goes on where it was.
    for name in ("train/accuracy", "speed"):
        button = page.locator(f'[id="pin-{name}"]')
        button.focus()
        page.keyboard.press("Enter")
        expect(page.locator(f'[id="pin-{name}"]')).to_have_attribute("aria-label", re.compile("^Unpin "))
        expect(page.locator(f'[id="pin-{name}"]')).to_be_focused()
    assert charts(page)[:2] == ["train/accuracy", "speed"]
    assert len(drawn(page, "train/accuracy")[0]) == 20
    page.locator('[id="later-train/accuracy"]').press("Enter")
    expect(page.locator("#charts .chart").first).to_have_attribute("data-chart", "speed")
    page.locator('[id="hide-lr"]').press("Enter")
    expect(page.locator('[data-chart="lr"]')).to_have_count(0)
    page.get_by_label("x axis").select_option("flops")
    page.get_by_label("smoothing").fill("0.5")
    until(page, "location.search.includes('smoothing=0.5')")
    page.locator("#charts .chart").first.scroll_into_view_if_needed()
    page.get_by_text("Choose charts").click()
    expect(page.get_by_role("checkbox", name="Learning rate")).not_to_be_checked()
    visitor.photograph("pinned")
    assert asked(page) == {
        "pin": ["speed", "train/accuracy"],
        "hide": ["lr"],
        "x": ["flops"],
        "smoothing": ["0.5"],
    }

    # A link restores it exactly.
    before, link = charts(page), page.url
    page.goto("about:blank")
    page.goto(link)
    assert charts(page) == before
    steps = drawn(page, "train/accuracy")
    assert len(steps) == 2  # the values themselves behind the smoothed ones
    assert steps[0][0] > 1e6  # FLOPs
    page.get_by_label("only pinned").check()
    expect(page.locator("#charts .chart")).to_have_count(2)
    page.get_by_label("only pinned").uncheck()
    find(page, "accuracy")
    expect(page.locator("#charts .chart")).to_have_count(3)  # one of them is pinned, and so is the speed
    assert set(charts(page)) == {"speed", "train/accuracy", "validation/accuracy"}
    find(page, "learning")
    page.get_by_text("Choose charts").click()
    page.get_by_role("checkbox", name="Learning rate").click()
    expect(page.locator('[data-chart="lr"]')).to_have_count(1)


def test_a_view_is_kept_under_a_name(shown: Dashboard, measured: list[RunDir], visitor: Visitor) -> None:
    page = visitor(shown.page(f"/runs/{key(measured[0])}?pin=train/accuracy"))
    page.get_by_label("log scale").check()
    until(page, "location.search.includes('log=true')")
    page.get_by_text("Views").click()
    page.get_by_label("name").fill("Accuracy & more")
    page.get_by_role("button", name="Keep this view").click()
    expect(page.locator(".said")).to_have_text("This view is kept as Accuracy & more.")
    kept = json.loads((shown.runs_dir / "views.json").read_text())["views"]
    assert kept == [{"name": "Accuracy & more", "page": "run", "query": "pin=train%2Faccuracy&log=true"}]
    page.goto(f"{shown.address}/runs/{key(measured[1])}")
    page.get_by_text("Views (1)").click()
    page.get_by_role("link", name="Accuracy & more").click()
    page.wait_for_url(re.compile(f"{measured[1].run_id}.*pin="))
    assert charts(page)[0] == "train/accuracy"
    expect(page.get_by_label("log scale")).to_be_checked()
    page.get_by_text("Views (1)").click()
    page.get_by_role("button", name="Remove the view Accuracy & more").click()
    expect(page.locator(".said")).to_contain_text("is removed")
    assert json.loads((shown.runs_dir / "views.json").read_text()) == {"views": []}


def test_a_live_page_asks_for_what_is_new_and_gets_no_more(
    shown: Dashboard, own: Reviewed, measured: list[RunDir], visitor: Visitor
) -> None:
    run = measured[1]
    asked_for: list[str] = []
    page = visitor.page
    page.on("response", lambda answer: asked_for.append(f"{answer.status} {answer.url.partition('?')[0]}"))
    visitor(shown.page(f"/runs/{key(run)}"))
    assert len(drawn(page, "train/accuracy")[0]) == 20
    drawn(page, "loss")
    page.mouse.wheel(0, 1)
    asked_for.clear()
    with page.expect_response(lambda answer: "/changes" in answer.url and answer.status == 204):
        pass
    assert not any("/figure/" in each or each.endswith("/metric") for each in asked_for)

    write(run, 21, 3, {"train/loss": 3.0, "train/accuracy": 0.5, "train/lr": 1e-3})
    with page.expect_response(lambda answer: "/changes" in answer.url and answer.status == 200) as answer:
        pass
    assert len(answer.value.body()) < 2000
    assert answer.value.json()["figures"]["loss"][0] == {"x": [21, 22, 23], "y": [3.0, 3.0, 3.0]}
    wait_until(lambda: drawn(page, "loss")[0][-1] == 23, "the new points")
    assert drawn(page, "loss")[0] == list(range(1, 24))

    # A resume undoes steps: the chart is drawn anew. A metric that is new gets a chart.
    write(run, 22, 1, {"train/loss": 2.0, "train/entropy": 1.0})
    expect(page.locator('[data-chart="train/entropy"]')).to_have_count(1)
    wait_until(lambda: drawn(page, "loss")[0][-1] == 22, "the steps that count")
    figure = page.locator('[data-chart="train/entropy"]')
    assert drawn(page, "train/entropy") == [[22]]
    expect(figure.locator(".scatterlayer .points path").first).to_be_visible()  # a single point
    legend = page.locator('[data-chart="loss"] .legendtext').all_text_contents()
    assert "train/loss (undone)" in legend


def test_any_metric_of_any_runs_is_compared(
    shown: Dashboard, own: Reviewed, measured: list[RunDir], visitor: Visitor
) -> None:
    runs = [*measured, own.completed]
    page = visitor(shown.page("/compare?" + "&".join(f"run={key(run)}" for run in runs[1:])))
    assert len(drawn(page, "train/accuracy")) == 1
    expect(page.locator('[data-chart="train/accuracy"] .legendtext')).to_have_count(1)  # whose curve it is
    page.goto(f"{shown.address}/compare?" + "&".join(f"run={key(run)}" for run in runs))
    assert len(drawn(page, "train/accuracy")) == 2
    legend = page.locator('[data-chart="train/accuracy"] .legendtext').all_text_contents()
    assert len(set(legend)) == 2
    page.locator('[id="pin-train/accuracy"]').click()
    expect(page.locator("#charts > h2").first).to_have_text("pinned")
    assert asked(page)["run"] == [key(run) for run in runs]
    assert charts(page)[0] == "train/accuracy"
    find(page, "perplexity")
    expect(page.locator('[data-chart="loss"]')).to_have_count(0)
    assert "validation/perplexity" in charts(page)
    assert len(drawn(page, "validation/perplexity")) == 3


def test_a_page_of_several_runs_gets_no_more_than_what_is_new(
    shown: Dashboard, measured: list[RunDir], visitor: Visitor
) -> None:
    resting, live = measured
    page = visitor.page
    answers: list[str] = []
    page.on("response", lambda answer: answers.append(f"{answer.status} {answer.url.partition('?')[0]}"))
    visitor(shown.page(f"/compare?run={key(resting)}&run={key(live)}"))
    before = drawn(page, "loss")
    page.mouse.wheel(0, 1)
    with page.expect_response(lambda answer: "/changes" in answer.url and answer.status == 204):
        pass
    answers.clear()
    last = before[1][-1]
    write(live, last + 1, 3, {"train/loss": 3.0, "train/lr": 1e-3})
    with page.expect_response(lambda answer: "/changes" in answer.url and answer.status == 200) as answer:
        pass
    new = {"x": [last + 1, last + 2, last + 3], "y": [3.0, 3.0, 3.0]}
    assert answer.value.json()["figures"]["loss"] == [{"x": [], "y": []}, new]
    assert len(answer.value.body()) < 2000
    wait_until(lambda: drawn(page, "loss") == [before[0], [*before[1], *new["x"]]], "the new points")
    with page.expect_response(lambda answer: "/changes" in answer.url and answer.status == 204):
        pass
    assert not any("/figure/" in each or each.endswith("/metric") for each in answers)

    write(live, last + 2, 1, {"train/loss": 2.0})  # a resume undoes steps: the chart is drawn anew
    wait_until(lambda: drawn(page, "loss")[1][-1] == last + 2, "the steps that count")
    assert drawn(page, "loss")[0] == before[0]


def test_columns_of_ones_choice(shown: Dashboard, measured: list[RunDir], visitor: Visitor) -> None:
    page = visitor(shown.page("/"))
    expect(page.get_by_text("Reading the folder")).to_have_count(0)
    page.get_by_text("Columns").click()
    page.get_by_role("searchbox", name="find").fill("accuracy")
    page.get_by_role("checkbox", name="train/accuracy", exact=True).check()
    header = page.get_by_role("columnheader", name="train/accuracy", exact=True)
    expect(header).to_be_visible()
    page.get_by_role("searchbox", name="find").fill("optimizer.lr")
    page.get_by_role("checkbox", name="optimizer.lr", exact=True).check()
    for name in ("Progress", "User", "Tokens/s"):
        page.get_by_role("checkbox", name=name, exact=True).uncheck()
        expect(page.get_by_role("columnheader", name=name, exact=True)).to_have_count(0)
    expect(page.get_by_role("columnheader", name="lr", exact=True)).to_be_visible()
    row = page.locator("tr", has_text=key(measured[0]))
    expect(row).to_contain_text("0.25")
    assert asked(page)["column"][-2:] == ["train/accuracy", "optimizer.lr"]
    page.get_by_role("columnheader", name="lr", exact=True).get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="lr", exact=True)).to_have_attribute("aria-sort", "ascending")
    page.reload()
    expect(page.get_by_role("columnheader", name="train/accuracy", exact=True)).to_be_visible()
    page.get_by_role("searchbox", name="Filter").fill("name=measured")
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    expect(page.get_by_role("columnheader", name="train/accuracy", exact=True)).to_be_visible()
    visitor.photograph("columns")


def test_on_a_phone_state_loss_and_time_left_are_in_sight(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    visitor.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page = visitor(shown.page("/"))
    expect(page.get_by_text("Reading the folder")).to_have_count(0)
    for name in ("Run", "State", "ETA", "Loss"):
        box = page.get_by_role("columnheader", name=name, exact=True).bounding_box()
        assert box is not None, name
        assert box["x"] + box["width"] <= PHONE[0], name
    until(page, "document.querySelector('#compare').scrollWidth <= document.querySelector('#compare').clientWidth")
    page.goto(f"{shown.address}/runs/{key(own.completed)}")
    for text in ("completed", "loss"):
        box = page.locator("main").get_by_text(text, exact=True).first.bounding_box()
        assert box is not None, text
        assert box["y"] + box["height"] <= PHONE[1], text


def test_five_hundred_metrics_and_hostile_names(shown: Dashboard, own: Reviewed, visitor: Visitor) -> None:
    names = [HOSTILE, "../../x", "x" * 10_000, "no prefix", "a/\ud800", "eval/<b>&amp;"]
    values = {f"many/metric_{number:03}": 1.0 for number in range(MANY)} | {f"train/{name}": 2.0 for name in names}
    run = own.changed
    write(run, 41, 2, {"train/loss": 2.0, **values, **dict.fromkeys(names, 3.0)})
    page = visitor(shown.page(f"/runs/{key(run)}"))
    drawn(page, "loss")
    assert len(charts(page)) <= 60
    page.get_by_text("Choose charts").click()
    expect(page.locator("#choices")).to_contain_text("find them by a part of their names")
    for text in ("metric_499", "onerror", "../x", "no prefix", "xxxxxxxx", "&amp;"):
        find(page, text)
        found = charts(page)
        assert 1 <= len(found) <= 2, text
        assert drawn(page, found[0]) == [[41, 42]]
    assert page.locator("main img, main script").count() == 0
    with page.expect_navigation(wait_until="commit"):
        page.goto(f"{shown.address}/runs/{key(run)}?find=onerror")
    page.locator(f'[id="hide-{HOSTILE}"]').click()
    expect(page.locator(f'[id="hide-{HOSTILE}"]')).to_have_count(0)
    assert asked(page)["hide"] == [HOSTILE]


def test_pages_keep_to_wcag_aa(shown: Dashboard, own: Reviewed, measured: list[RunDir], visitor: Visitor) -> None:
    """Each page at a desk and then on a phone, in both themes; every other one is opened in the dark."""
    page = visitor.page
    runs = "&".join(f"run={key(run)}" for run in measured)
    found = {}
    opened, other = BOTH_THEMES
    for path in (
        f"/runs/{key(measured[0])}?pin=train/accuracy&pin=loss&hide=lr",
        f"/runs/{key(own.broken)}",
        f"/compare?{runs}",
        "/",
        "/?column=run&column=state&column=optimizer.lr&column=train/accuracy",
        "/sweeps/rates",
        f"/runs/{key(own.completed)}/data",
    ):
        page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
        page.emulate_media(color_scheme=opened, reduced_motion="reduce")
        visitor(shown.page(path))
        page.locator("h1").wait_for()
        for summary in page.locator("details.picker > summary, details.help > summary").all():
            summary.click()
        for size, themes in ((DESK, (opened, other)), (PHONE, (other, opened))):
            page.set_viewport_size({"width": size[0], "height": size[1]})
            until(page, "document.documentElement.scrollWidth <= innerWidth")  # charts take it a moment later
            for theme in themes:
                page.emulate_media(color_scheme=theme, reduced_motion="reduce")
                until(page, "!document.querySelector('.htmx-request')")
                found[path, size, theme] = violations(page, only_colours=theme != themes[0])
                visitor.photograph(re.sub(r"\W+", "-", path.partition("?")[0]) + f"-{theme}-{size[0]}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, size)
        opened, other = other, opened
    assert len(found) == 28
    assert {seen: each for seen, each in found.items() if each} == {}
