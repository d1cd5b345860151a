"""The dashboard, asked over HTTP what nobody should ask: its own parameters drawn at random, and long addresses."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.event_log import append_event, append_to_ledger
from support.faults import wait_until
from support.hostile import LARGEST_ANSWER, NUMBERS, TEXTS, half_open, watched, with_few_descriptors
from support.training import tiny_job

from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings
from orchestrator.http.listening import listen
from orchestrator.http.server import Server
from orchestrator.launch.runs import create_run
from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.review.charts.machines import MEASURES
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved
from orchestrator.sweeps.ledger import SweepDir, sweep_dir

STEPS = 4000
LONG_LOGGED = 4
"""Of the runs that have measured much, those with many logs and events too."""
CELLS = 160
SWEPT = [f"model.a_key_that_is_long_{number}.of_a_sweep" for number in range(16)]
LARGE = re.compile(r"plotly\.js|/runs/[^/]*/[^/]*/(logs/raw|code/|spec/written)")
"""What is large by its nature: plotly's 5 MB, which browsers fetch once and keep, and downloads."""
USUAL: dict[str, Any] = {
    "x": st.sampled_from(["steps", "tokens", "time", "clock", "flops"]),
    "run": st.lists(st.sampled_from(["long/0", "long/1", "long/2"]), max_size=3),
    "sort": st.sampled_from(["name", "loss", "created"]),
    "file": st.just("logs/rank-0.log"),
    "key": st.sampled_from(["train/lr", "train/custom"]),
    "chart": st.lists(st.sampled_from(["loss", "train/custom"]), max_size=3),
    "pin": st.lists(TEXTS, max_size=3),
    "do": st.sampled_from(["pin:loss", "hide:", "earlier:x", "later:loss", ":"]),
    "column": st.lists(st.sampled_from(["run", "optimizer.lr", "train/custom", "x"]), max_size=3),
    "offset": NUMBERS.map(str),
    "period": st.sampled_from(["7d", "30d", "all"]),
}
IN_PATHS = {
    "name": st.just("large"),
    "chart": st.sampled_from(sorted(CHARTS)),
    "measure": st.sampled_from(sorted(MEASURES)),
    "kind": st.sampled_from(["heat", "scatter", "parallel", "curves"]),
}
ANY = st.one_of(TEXTS, NUMBERS.map(str), st.sampled_from(["true", "false", "1e400", "nan", "-0"]))


def long_runs(folder: Path, count: int) -> list[RunDir]:
    """Runs that have measured much, all of them the same."""
    values = {
        "train/loss": 2.718281828459045,
        "train/lr": 1.2345678901234567e-5,
        "train/grad_norm": 0.12345678901234567,
        "train/custom": 0.12345678901234567,
    }
    metrics = ""
    for step in range(1, STEPS + 1):
        measured = {name: value * (1 + step % 97 / 1000) for name, value in values.items()}
        record = {"time": 1.7e9 + step, "iteration": step, "samples": 8 * step, "tokens": 512 * step}
        metrics += json.dumps({**record, "values": measured}) + "\n"
    lines = (f"line {number} of a log & <b>{'long ' * (number % 900)}</b>\n" for number in range(2000))
    logs = {f"rank-{rank}.log": f"<{rank}>\n" for rank in range(400)} | {"rank-0.log": "".join(lines)}
    message = "No space left on device: " + "'" * 100
    failed = {"time": time.time(), "event": "checkpoint_failed", "iteration": STEPS, "message": message}
    made = []
    for number in range(count):
        job = tiny_job("long", optimizer={"lr": 1e-3 * (1 + number)})
        run = create_run(job, dump_resolved(job), folder)
        run.metrics_file.write_text(metrics)
        made.append(run)
        if number >= LONG_LOGGED:
            continue
        run.logs.mkdir(exist_ok=True)
        for name, said in logs.items():
            (run.logs / name).write_text(said)
        (run.path / "code.diff").write_text('+ a <changed> "line"\n' * 20_000)
        (run.path / "launch.sh").write_text("# " + "x" * 100_000)
        with run.events_file.open("a") as file:
            file.write((json.dumps(failed) + "\n") * 3000)
    return made


def large_sweep(folder: Path, name: str = "large") -> SweepDir:
    """A sweep of many cells, each of which is the only one with its values, that are long; some failed, others cannot
    run.
    """
    made = create_run(tiny_job("cell"), dump_resolved(tiny_job("cell")), folder)
    cells = []
    for number in range(CELLS):
        run = RunDir(folder / f"{name}-{'r' * 60}" / f"{number:08x}")
        shutil.copytree(made.path, run.path)
        values = {key: f"{number * (place + 1) / 997:.17g}" for place, key in enumerate(SWEPT)}
        values["data.path"] = f"/data/<{number}>/{'&' * 180}"
        cell = ",".join(f"{key.rpartition('.')[2]}={value[:40]}" for key, value in values.items())
        cells.append({"id": str(number), "name": cell, "values": values, "run": f"{run.name}/{run.run_id}"})
        run.membership.write_text(json.dumps({"sweep": name, "cell": cell, "values": values}))
        append_event(run, "launched", launch_id="a", host="nowhere", pid=1, job_id=None)
        end = {"code": 0, "cause": "completed", "message": ""}
        if number % 7 == 0:
            end = {"code": 1, "cause": "nan", "message": '"' * 900}
        append_event(run, "exited", launch_id="a", iteration=3, **end)
        rank = number * 7919 % CELLS
        steps = STEPS // 4 if rank < 30 else 3
        with run.metrics_file.open("w") as file:
            for step in range(1, steps + 1):
                record = {"time": 1.7e9 + step, "iteration": step, "samples": 8 * step, "tokens": 512 * step}
                measured = {"train/loss": (rank + step % 97 / 1000) / 7}
                if step == steps:
                    measured |= {f"train/loss/{'x' * 80}{place}": 1 / (place + 1) for place in range(60)}
                file.write(json.dumps({**record, "values": measured}) + "\n")
    pruned = [
        {"name": f"{number}," + "<" * 300, "values": {}, "reason": f"reason {number}: " + "&" * 300}
        for number in range(CELLS)
    ]
    sweep = sweep_dir(name, folder)
    sweep.path.mkdir(parents=True)
    append_to_ledger(sweep, "planned", generation=1, metric="train/loss", goal="min", cells=cells, pruned=pruned)
    return sweep


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("runs")
    runs = long_runs(folder, 20)
    FOLDERS.append(folder)
    KEYS.extend(f"{run.name}/{run.run_id}" for run in runs)
    large = large_sweep(folder)
    planned = asdict(large.planned())
    for number in range(60):
        other = sweep_dir(f"{number:03}-{'s' * 60}", folder)
        other.path.mkdir()
        append_to_ledger(other, "planned", **{**planned, "cells": planned["cells"][number : number + 1]})
    server, listening = Server(create_app(Settings(folder, allows_actions=True))), listen("127.0.0.1", 0)
    routes()  # makes another app, which silences warnings for a moment, in all threads: before there are others
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    found = listening.getsockname()[1]
    wait_until(lambda: ask(found, f"/runs/{KEYS[0]}")[0] == 200, "the dashboard")
    yield found
    server.should_exit = True
    thread.join()


KEYS: list[str] = []
FOLDERS: list[Path] = []


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@cache
def routes() -> list[APIRoute]:
    """Of every page."""
    found: list[APIRoute] = []
    unseen = list(create_app(Settings(Path("/nowhere"))).routes)
    while unseen:
        route = unseen.pop()
        if isinstance(route, APIRoute):
            found.append(route)
        unseen += getattr(getattr(route, "original_router", None), "routes", [])
    return sorted(found, key=lambda route: route.path)


def parameters(route: APIRoute) -> list[str]:
    """The names of those that follow the question mark, of the page and of what it depends on."""
    names, unseen = [], [route.dependant]
    while unseen:
        dependant = unseen.pop()
        names += [each.alias for each in dependant.query_params]
        unseen += dependant.dependencies
    return sorted(set(names))


@st.composite
def addresses(draw: st.DrawFn) -> str:
    route = draw(st.sampled_from(routes()))
    path = route.path
    if draw(st.integers(0, 3)):
        name, run_id = draw(st.sampled_from(KEYS[: LONG_LOGGED + 1])).split("/")
        path = path.replace("{name}/{run_id}", f"{name}/{run_id}")
    for part in route.dependant.path_params:
        value = draw(IN_PATHS[part.alias] if part.alias in IN_PATHS and draw(st.booleans()) else TEXTS)
        path = path.replace(f"{{{part.alias}}}", quote(value, safe="", errors="replace"))
    asked: list[tuple[str, str]] = []
    for name in parameters(route):
        if draw(st.booleans()):
            value = draw(USUAL[name] if name in USUAL and draw(st.booleans()) else ANY)
            asked += [(name, each) for each in (value if isinstance(value, list) else [value])]
    # As a person or a proxy may write it: also bytes that are no UTF-8.
    return f"{path}?{urlencode(asked, errors='replace')}" if asked else path


def test_no_address_is_too_much(port: int) -> None:
    statuses = set()

    @settings(max_examples=examples(400), suppress_health_check=list(HealthCheck))
    @given(addresses())
    def asks(path: str) -> None:
        status, content = ask(port, path)
        assert status < 500, path
        assert len(content) <= LARGEST_ANSWER or LARGE.search(path), path
        statuses.add(status)

    with watched(port, process=os.getpid()):
        asks()
    assert statuses >= {200, 400, 404}


def test_pages_and_figures_of_long_runs_are_of_bounded_size(port: int) -> None:
    run, beside = f"/runs/{KEYS[0]}", urlencode([("run", key) for key in KEYS])
    wait_until(lambda: b"are being read" not in ask(port, "/")[1], "all runs to be read")
    ends = ["", "/events", "/checkpoints", "/data", "/machines", "/plan", "/spec", "/time", "/code", "/logs"]
    ends += ["/logs?line=1", "/logs?before=1000", "/logs?q=line", "/logs?q=line&everywhere=true"]
    ends += ["/logs/new?file=logs/rank-0.log&from=0", "/events?from=2500"]
    figures = [
        f"/figure/{chart}?x={x}&smoothing=0.5" for chart in ("loss", "lr", "grad_norm") for x in ("time", "clock")
    ]
    pages = [*(run + end for end in (*ends, *figures)), "/", "/cluster", "/sweeps"]
    pages += [f"/compare?{beside}&whole=true", f"/compare/figure/loss?{beside}&x=time"]
    for page in pages:
        status, content = ask(port, page)
        assert (status, len(content) <= LARGEST_ANSWER) == (200, True), (page, len(content))
    curves = json.loads(ask(port, f"/compare/figure/loss?{beside}")[1])["data"]
    assert len(curves) == 20
    assert all(len(curve["x"]) > 130 and curve["x"][-1] == STEPS for curve in curves)


def test_a_page_of_many_metrics_with_long_names_is_of_bounded_size(port: int) -> None:
    name, run_id = KEYS[-1].split("/")
    run = RunDir(FOLDERS[0] / name / run_id)
    names = [f"{number}/{'<&é'[number % 3] * 110}" for number in range(500)] + ["x" * 10_000, "../x", "</script>"]
    with run.metrics_file.open("a") as file:
        record = {"time": 1.8e9, "iteration": STEPS + 1, "samples": 1, "tokens": 1, "values": dict.fromkeys(names, 1.0)}
        file.write(json.dumps(record) + "\n")
    address, beside = f"/runs/{KEYS[-1]}", urlencode([("run", key) for key in KEYS])
    assert ask(port, f"{address}/figure/loss")[0] == 200
    chosen = urlencode({"pin": names[:60], "hide": names[60:120], "find": "é"}, doseq=True)
    for path in (address, f"{address}?{chosen}", f"/compare?{beside}", f"/compare?{beside}&{chosen}"):
        status, content = ask(port, path)
        assert (status, len(content) <= LARGEST_ANSWER) == (200, True), (path[:80], status, len(content))
    for key in names[-2:]:
        for path in (f"{address}/metric?", f"/compare/metric?{beside}&"):
            assert ask(port, path + urlencode({"key": key}))[0] == 200
    followed = urlencode({"chart": names[:30], "offset": 0, "step": 0, "events": 0, "keys": 0}, doseq=True)
    status, content = ask(port, f"{address}/changes?{followed}")
    assert (status, json.loads(content)["figures"], len(content) < 300) == (200, None, True)


def test_pages_and_figures_of_large_sweeps_are_of_bounded_size(port: int) -> None:
    wait_until(lambda: b"are being read" not in ask(port, "/sweeps/large")[1], "the cells to be read")
    chosen = urlencode({"x": SWEPT[0], "y": SWEPT[1], "metric": "train/loss"})
    longest = urlencode({"x": "data.path", "y": "data.path"})
    ends = ["", f"?{chosen}", f"?{longest}", "?from=80"]
    kinds = ("heat", "scatter", "parallel", "curves")
    ends += [f"/figure/{kind}?{asked}" for kind in kinds for asked in (chosen, longest)]
    runs = ["/", "/?cells=all", "/?cells=all&q=sweep%3Dlarge", "/sweeps", "/sweeps?from=20"]
    for page in [*(f"/sweeps/large{end}" for end in ends), *runs]:
        status, content = ask(port, page)
        assert (status, len(content) <= LARGEST_ANSWER) == (200, True), (page, len(content))


@pytest.mark.parametrize("long", ["a" * 12_000, "%22" * 4000, "%F0%9F%98%80" * 1000, "%ff" * 3000])
def test_what_is_wrong_is_said_in_few_words(port: int, long: str) -> None:
    run = f"/runs/{KEYS[0]}"
    wrong = [f"/{long}", f"/runs/{long}/x", f"{run}/figure/{long}", f"/sweeps/{long}", f"/?q={long}", f"/?state={long}"]
    wrong += [f"/?page={long}", f"{run}/logs?file={long}", f"{run}/logs?q={long}", f"{run}/logs/raw?file={long}"]
    wrong += [f"{run}/spec?against={long}", f"/compare?run={long}", f"/assets/x/{long}", f"{run}/actions/{long}"]
    for path in wrong:
        status, content = ask(port, path)
        assert (status in (400, 404), len(content) < 8000) == (True, True), (path[:40], status, len(content))


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "POST", "X" * 500])
def test_other_methods_are_refused(port: int, method: str) -> None:
    for path in ("/", "/health", f"/runs/{KEYS[0]}", f"/runs/{KEYS[0]}/actions/cancel", "/sweeps/x/actions/retry"):
        status, content = ask(port, path, method, b"x" * 1000, **{"Content-Type": "text/odd; charset=nothing"})
        assert (status in (403, 404, 405), len(content) < 8000) == (True, True), path


def test_more_connections_than_descriptors_shut_nobody_out(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "dashboard", "--runs-dir", str(tmp_path), "--port=0", "--json"]
    with subprocess.Popen(with_few_descriptors(command), stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        port = int(json.loads(program.stdout.readline())["address"].rstrip("/").rpartition(":")[2])
        try:
            assert ask(port, "/health")[0] == 200, "it has started"
            with half_open(port), watched(port):
                assert ask(port, "/")[0] == 200
        finally:
            program.terminate()
