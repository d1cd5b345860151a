"""Damaged, missing and hostile files: every page is shown, escaped, or says in a clear 404 what is not there."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from browser.conftest import Dashboard, Dashboards, Visitor
from browser.reviewed import Reviewed
from playwright.sync_api import expect
from support.event_log import append_event

from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings
from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.run_directory.rundir import RunDir

HOSTILE = "<script>alert('owned')</script><img src=x onerror=alert(1)>‮\N{PILE OF POO}"
Damage = Callable[[RunDir], object]


@pytest.fixture(scope="module")
def damaged(reviewed: Reviewed, tmp_path_factory: pytest.TempPathFactory) -> Reviewed:
    """The reviewed runs, and beside them damaged copies: `damaged/0000000N`, and one with a hostile name."""
    own = reviewed.copied(tmp_path_factory.mktemp("damaged"))
    template = own.resumed
    for number, damage in enumerate(_damages(template)):
        run = RunDir(own.runs_dir / "damaged" / f"{number:08x}")
        shutil.copytree(template.path, run.path, ignore=shutil.ignore_patterns("*.distcp"))
        damage(run)
    hostile = own.runs_dir / HOSTILE.replace("/", "\N{DIVISION SLASH}") / "00000000"
    shutil.copytree(template.path, hostile)
    _make_hostile(RunDir(hostile))
    (own.runs_dir / "loop").symlink_to(own.runs_dir / "loop")
    (own.runs_dir / "damaged" / "ffffffff").symlink_to(own.runs_dir / "damaged" / "ffffffff")
    (own.runs_dir / "damaged" / "eeeeeeee").mkdir()
    (own.runs_dir / "up").symlink_to(own.runs_dir)
    return own


def _damages(template: RunDir) -> Iterator[Damage]:
    """What is done to a copy of a run: each of its files removed, torn, emptied or filled with something else; of
    files that differ in a number alone, such as those of its checkpoints, the last.
    """
    names = sorted(str(path.relative_to(template.path)) for path in template.path.rglob("*") if path.is_file())
    kinds = {re.sub(r"\d+", "0", name): name for name in names if not name.endswith(".distcp")}
    for name in kinds.values():
        yield _removed(name)
    contents = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[[1, 2]]\n",
        b"\xff\xfe\x00",
        b'{"values": 3, "time": []}\n',
        b"[" * 99_999,
    ]
    on_pages_of_their_own = ("lease/000001.json", "job.yaml", "code.json")
    for content in contents:
        for name in ("resolved.json", "events.jsonl", "metrics.jsonl"):
            yield _filled(name, content)
        yield _filled_each(on_pages_of_their_own, content)
    for name in ("events.jsonl", "metrics.jsonl"):
        yield _filled(name, (template.path / name).read_bytes()[:-9])
        for moment in (0, -5, time.time() + 9e8, 1e300, 10**30, math.nan, math.inf, "yesterday", None, True):
            yield _changed(name, "time", moment)
        for number in (-1, 10**30, 1.5, math.nan, "seven", None, [1]):
            yield _changed(name, "iteration", number)
    yield _changed("metrics.jsonl", "values", {"train/loss": 1e308, HOSTILE: math.inf, "validation/loss": "x"})
    yield _filled("sweep.json", json.dumps({"sweep": HOSTILE, "cell": HOSTILE, "values": 3}).encode())
    yield _filled("sweep.json", b"[]")


def _removed(name: str) -> Damage:
    return lambda run: (run.path / name).unlink()


def _filled(name: str, content: bytes) -> Damage:
    return lambda run: (run.path / name).write_bytes(content)


def _filled_each(names: Sequence[str], content: bytes) -> Damage:
    return lambda run: [_filled(name, content)(run) for name in names]


def _changed(name: str, key: str, value: object) -> Damage:
    return lambda run: _change(run.path / name, key, value)


def _change(path: Path, key: str, value: object) -> None:
    """Another value in every second line: clocks that go back and forth, steps that make no sense."""
    lines = path.read_text().splitlines()
    changed = [json.dumps({**json.loads(line), key: value}) if n % 2 else line for n, line in enumerate(lines)]
    path.write_text("\n".join(changed) + "\n")


def _make_hostile(run: RunDir) -> None:
    """Marks of HTML wherever a text comes from outside."""
    spec = json.loads(run.resolved().read_bytes())
    run.resolved().write_text(json.dumps({**spec, "name": HOSTILE, HOSTILE: HOSTILE}))
    end = {"cause": HOSTILE, "message": HOSTILE * 50, "code": 1, "iteration": 3, "evidence": [HOSTILE]}
    append_event(run, "launched", launch_id=HOSTILE, host=HOSTILE)
    append_event(run, "exited", launch_id=HOSTILE, **end)
    append_event(run, "stop_requested", by=HOSTILE, iteration=3)
    _change(run.metrics_file, "values", {"train/loss": 3.0, f"train/loss/{HOSTILE}": 2.0})
    run.rank_log(0).write_text(f"{HOSTILE}\n\x1b[31mred\x1b[0m \x00\n" * 20)
    for path in (run.job_yaml, run.path / "code.diff"):
        path.write_text(f"name: {HOSTILE}\n")


@pytest.fixture(scope="module")
def dashboard(dashboards: Dashboards, damaged: Reviewed) -> Dashboard:
    return dashboards.start(damaged.runs_dir, "--allow-actions")


@pytest.fixture(scope="module")
def addresses() -> list[str]:
    """All addresses that show something of one run, with `{name}` and `{run_id}` in them."""
    paths = create_app(Settings(Path.cwd())).openapi()["paths"]
    found = [path for path in paths if "{run_id}" in path and "get" in paths[path] and "{action}" not in path]
    charts = [path.replace("{chart}", chart) for path in found for chart in CHARTS if "{chart}" in path]
    plain = [path for path in found if "{chart}" not in path]
    return [path for path in (*plain, *charts) if not re.search(r"\{(?!name|run_id)", path)]


Get = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def get(dashboard: Dashboard) -> Iterator[Get]:
    """Asks for a path: status, type and text. All by one connection, as a browser does."""
    connection = http.client.HTTPConnection(urlsplit(dashboard.address).netloc)

    def ask(path: str) -> tuple[int, str, str]:
        connection.request("GET", path, headers={"Authorization": f"Bearer {dashboard.token}"})
        response = connection.getresponse()
        return response.status, response.getheader("content-type", ""), response.read().decode()

    yield ask
    connection.close()


def is_shown(get: Get, path: str) -> str | None:
    """What is wrong with an answer; None where it is a page, or a clear word that there is none."""
    status, kind, text = get(path)
    if status not in (200, 400, 404, 409, 422):
        return f"{path}: {status} {text[:200]}"
    if kind.startswith("text/html") and ("<script>alert" in text or "<img src=x" in text):
        return f"{path}: not escaped"
    if kind.startswith("application/json"):
        json.loads(text, parse_constant=lambda constant: pytest.fail(f"{path}: {constant} is no JSON"))
    return None


def test_every_page_of_every_damaged_run(get: Get, damaged: Reviewed, addresses: list[str]) -> None:
    assert len(addresses) > len(CHARTS)
    runs = [
        run
        for run in damaged.runs_dir.glob("*/????????")
        if run.parent.name in ("damaged", "loop", "up") or "<" in run.parent.name
    ]
    wrong = []
    for run in runs:
        named = {"name": quote(run.parent.name, safe=""), "run_id": quote(run.name, safe="")}
        few = [path for path in addresses if "/figure/" not in path or path.endswith("/loss")]
        wrong += [is_shown(get, path.format(**named)) for path in few]
    assert len(runs) > 60
    assert [each for each in wrong if each is not None] == []


def test_every_page_of_the_folder(get: Get, damaged: Reviewed) -> None:
    queries = (
        "",
        "?cells=all&sort=age",
        "?cells=all&page=2",
        f"?q={quote(HOSTILE)}",
        "?q=%22",
        "?page=99",
        "?state=%3Cscript%3E",
    )
    keys = [quote(f"damaged/{number:08x}", safe="") for number in range(0, 60, 7)]
    pages = [*(f"/{query}" for query in queries), "/sweeps", "/cluster", "/compare?run=" + "&run=".join(keys)]
    assert [wrong for path in pages if (wrong := is_shown(get, path)) is not None] == []
    for path in (
        "/runs/..%2F../etc",
        "/runs/%2e%2e/passwd",
        "/runs/a%00b/c",
        f"/runs/{'x' * 4000}/y",
        "/assets/x/..%2Fapp.py",
    ):
        assert get(path)[0] == 404
    assert get("/?page=zero")[0] == 400


def test_in_the_browser_nothing_of_it_runs(visitor: Visitor, dashboard: Dashboard, damaged: Reviewed) -> None:
    page = visitor(dashboard.page("/?cells=all&q=%22%3Cscript%22"))
    expect(page.locator("table.runs tbody tr").first).to_contain_text("<script>alert")
    visitor.photograph("hostile")
    page.get_by_role("link", name=re.compile("<script>alert")).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("<script>alert")
    visitor.photograph("hostile-run")


def test_a_run_that_is_removed_while_its_page_is_open(
    visitor: Visitor, dashboard: Dashboard, get: Get, damaged: Reviewed
) -> None:
    run = RunDir(damaged.runs_dir / "removed" / "00000000")
    shutil.copytree(damaged.completed.path, run.path)
    page = visitor(dashboard.page("/?q=removed"))
    expect(page.locator("table.runs tbody tr").first).to_contain_text("removed/00000000")
    page.get_by_role("link", name="removed/00000000").click()
    page.wait_for_selector(".chart .main-svg")
    shutil.rmtree(run.path)
    assert get(f"/runs/removed/{run.run_id}/figure/loss")[0] == 404
    page.go_back()
    expect(page.get_by_text("No matching runs.")).to_be_visible()
    visitor.problems.clear()  # the browser notes each 404 in its console


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(get: Get, damaged: Reviewed, addresses: list[str]) -> None:
    run = RunDir(damaged.runs_dir / "secret" / "00000000")
    shutil.copytree(damaged.completed.path, run.path)
    run.resolved().chmod(0)
    run.metrics_file.chmod(0)
    for path in addresses:
        assert is_shown(get, path.format(name="secret", run_id=run.run_id)) is None
