"""One odd run in a folder: whatever stands in the place of its files, it is a row like any other, nothing waits for it,
and nothing that lies outside of it is told.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from support.event_log import append_to_ledger, lines_of
from support.odd_files import SECRET, damaged_runs, files_of, kinds, whole_run

from orchestrator.cli.main import main
from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.report.building import ReportRequest, build
from orchestrator.dashboard.report.markdown import to_markdown
from orchestrator.dashboard.settings import Settings
from orchestrator.errors import OrchestratorError
from orchestrator.launch.runs import all_runs, find_run
from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.review.logs.pages import log_list
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import sweep_dir
from orchestrator.tracking.description import describe
from orchestrator.tracking.measurements.inputs import read_inputs
from orchestrator.tracking.mlflow.cursor import read_cursor

_MEMORY = 3 << 29


@dataclass(frozen=True)
class Folder:
    """A runs folder. `well`: a run that nothing is wrong with; `damaged`: one with one odd file each; `odd`: by kind,
    one in which every file but the spec is of that kind.
    """

    path: Path
    well: RunDir
    damaged: list[RunDir]
    odd: dict[str, RunDir]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    base = tmp_path_factory.mktemp("odd")
    runs_dir, outside = base / "runs", base / "outside"
    well, template = whole_run("well", runs_dir), whole_run("template", runs_dir)
    damaged = damaged_runs(template, outside)
    odd = {}
    for number, (kind, put) in enumerate(kinds(outside).items()):
        run = odd[kind] = RunDir(runs_dir / f"all-{kind}" / f"{number:08x}")
        shutil.copytree(template.path, run.path)
        for name in files_of(run):
            if name != "resolved.json":
                put(run.path / name)
    (runs_dir / "junk").write_bytes(b"\xff")
    os.mkfifo(runs_dir / "pipe")
    (runs_dir / "round").symlink_to("round")
    (runs_dir / "well" / "no run").mkdir()
    shutil.copytree(template.path, runs_dir / os.fsdecode(b"\xff\n\x1b[2J") / "ffffffff")
    shutil.copytree(well.path.parent, runs_dir / "sweeps" / os.fsdecode(b"\xff"))
    (runs_dir / "sweeps" / os.fsdecode(b"\xff") / "ledger.jsonl").write_text('{"event": "planned", "cells": []}\n')
    for kind, put in kinds(outside).items():
        sweep = sweep_dir(f"sweep-{kind}", runs_dir)
        cells = [{"id": "1", "name": "a", "values": {"optimizer.lr": "1"}, "run": f"well/{well.run_id}"}]
        cells += [{**cells[0], "id": "2", "run": f"all-fifo/{odd['fifo'].run_id}"}]
        sweep.path.mkdir(parents=True)
        append_to_ledger(
            sweep, "planned", generation=1, metric=None, goal="min", cells=cells, pruned=[], filtered=0, repeated=0
        )
        put(sweep.ledger)
    return Folder(runs_dir, well, damaged, odd)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail what takes longer, wherever it waits."""

    def end(*_: object) -> None:
        pytest.fail(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """typed(words): the exit code and what was printed, or else what was refused, within a time."""

    def run(*words: object) -> tuple[int, str]:
        with within(30):
            code = main([str(word) for word in words])
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err
        assert "\x1b" not in said.out + said.err
        return code, said.out or said.err

    return run


def test_list_has_a_row_for_each_in_bounded_time_and_memory(folder: Folder) -> None:
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    command = [sys.executable, "-m", "orchestrator", "list", "--json", "--runs-dir", str(folder.path)]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=bound, check=False)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert SECRET not in listed.stdout
    states = {row["path"]: row["state"] for row in json.loads(listed.stdout)}
    assert states[str(folder.well.path)] == "failed"
    expected = [run for run in (*folder.damaged, *folder.odd.values()) if os.path.lexists(run.path / "resolved.json")]
    assert len(expected) > 600
    assert [run.path for run in expected if str(run.path) not in states] == []
    unreadable = {Path(path).parent.name for path, state in states.items() if state == "unreadable"}
    assert {"fifo-events-jsonl", "out-events-jsonl", "zeros-events-jsonl", "loop-lease-000001-json"} <= unreadable
    assert not [name for name in unreadable if "events" not in name and "lease" not in name and "all-" not in name]


def test_a_table_for_people(folder: Folder, typed: Callable[..., tuple[int, str]]) -> None:
    code, out = typed("list", "--runs-dir", folder.path)
    assert code == 0
    assert f"well  {folder.well.run_id}" in re.sub(r"  +", "  ", out)
    assert typed("list", "well", "--runs-dir", folder.path)[0] == 0


def test_others_are_found_by_their_names(folder: Folder) -> None:
    with within(60):
        assert find_run("well", folder.path) == folder.well
        assert folder.well in all_runs(folder.path)


READ_BY_STATUS = ("events", "metrics", "lease", "resolved", "commit", "rank-00000-json", "evaluations", "mlflow")
TOLD = ("fifo", "folder", "out", "sparse", "deep", "texts", "nulls", "lists", "objects", "large", "far")


def test_status_compare_and_logs_of_each(folder: Folder, typed: Callable[..., tuple[int, str]]) -> None:
    chosen = [run for run in folder.damaged if re.match("|".join(TOLD), run.name)]
    chosen = [run for run in chosen if any(file in run.name for file in READ_BY_STATUS)]
    assert len(chosen) >= len(TOLD) * len(READ_BY_STATUS)
    for run in (*chosen, *folder.odd.values()):
        code, out = typed("status", run.path)
        told = code == 0 or re.search("cannot be read: .+; put that right", out) is not None
        assert (code, told) in ((0, True), (2, True)), run.name
    for run in folder.odd.values():
        assert typed("status", run.path, "--json")[0] in (0, 2), run.name
        assert typed("compare", run.path, folder.well.path)[0] == 0, run.name
        assert typed("logs", run.path)[0] in (0, 1, 2), run.name
        assert typed("logs", run.path, "-n", "3")[0] in (0, 1, 2), run.name
        assert typed("checkpoint", "list", run.path)[0] in (0, 1, 2), run.name
        assert typed("checkpoint", "verify", run.path)[0] in (0, 1, 2), run.name


@pytest.mark.parametrize("place", ["lease", "lease/000002.json"])
def test_who_may_write_is_not_known(
    folder: Folder, tmp_path: Path, typed: Callable[..., tuple[int, str]], place: str
) -> None:
    run = RunDir(tmp_path / "runs" / "unheld" / "00000000")
    shutil.copytree(folder.well.path, run.path)
    odd = run.path / place
    if odd.exists():
        shutil.rmtree(odd)
    os.mkfifo(odd)
    for words in (("status",), ("resume",), ("cancel",), ("delete", "--yes")):
        code, said = typed(*words, "unheld", "--runs-dir", run.path.parents[1])
        assert (code, f"cannot be read: {odd}: " in said, "; put that right" in said) == (2, True, True), said


@pytest.mark.parametrize("kind", ["fifo", "out", "deep"])
def test_the_status_of_a_run_without_a_spec_says_what_is_known(
    folder: Folder, typed: Callable[..., tuple[int, str]], kind: str
) -> None:
    run = next(each for each in folder.damaged if each.name == f"{kind}-resolved-json")
    code, out = typed("status", run.path, "--json")
    said = json.loads(out)
    assert (code, said["state"], said["iteration"], said["train_iters"]) == (0, "failed", 3, None)
    assert "resolved.json" in said["problems"][0]
    code, out = typed("status", run.path)
    assert code == 0
    assert re.search(r"iteration +3 of \?", out)


def test_sweeps_hide_no_other(folder: Folder, typed: Callable[..., tuple[int, str]]) -> None:
    code, out = typed("sweep", "list", "--json", "--runs-dir", folder.path)
    found = {each["name"]: each for each in json.loads(out)}
    assert code == 0
    assert found["sweep-far"]["states"] == {"failed": 2}
    assert {"sweep-fifo", "sweep-out", "sweep-zeros", "sweep-folder"} <= {n for n in found if "problem" in found[n]}
    assert typed("sweep", "list", "--runs-dir", folder.path)[0] == 0
    for kind in ("fifo", "sparse", "texts", "nulls", "lists", "objects"):
        assert typed("sweep", "status", f"sweep-{kind}", "--runs-dir", folder.path)[0] in (0, 1, 2)
    assert typed("sweep", "status", "sweep-far", "--runs-dir", folder.path)[0] == 0, "one of its cells is odd"


def test_reports_and_trackers_tell_nothing_from_outside(folder: Folder) -> None:
    """What a link leads to is neither shown nor sent."""
    links = [run for run in folder.damaged if run.name.startswith("out-")]
    for run in (*links, *folder.odd.values()):
        with within(30):
            report = to_markdown(build(ReportRequest((run, folder.well))))
            assert SECRET not in report
            assert f"## well/{folder.well.run_id} (failed)" in report
            read_cursor(run)
            read_inputs(run)
            try:
                told = describe(run)
            except (OSError, OrchestratorError):
                continue
            said = repr(told)
        assert SECRET not in said, run.name


@pytest.fixture(scope="module")
def visitor(folder: Folder) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(folder.path))) as client:
        yield client


@pytest.mark.slow("every page of two dozen kinds of damage, in a folder of 600 runs")
def test_every_page_of_a_run_in_which_all_is_odd(visitor: TestClient, folder: Folder) -> None:
    paths = create_app(Settings(folder.path)).openapi()["paths"]
    known = [path for path in paths if "{run_id}" in path and "get" in paths[path] and "{action}" not in path]
    pages = [path.replace("{chart}", next(iter(CHARTS))) for path in known]
    pages = [path for path in pages if not re.search(r"\{(?!name|run_id)", path)]
    log = "?from=0&file=logs/rank-00000.log"
    for kind, run in folder.odd.items():
        with within(60):
            for page in pages:
                if kind == "sparse" and page.endswith("/raw"):
                    continue  # whoever wants it has it, all of it
                address = page.format(name=run.name, run_id=run.run_id)
                answer = visitor.get(address + (log if "/logs" in page else ""))
                assert answer.status_code in (200, 404), (kind, address, answer.text)
                assert SECRET not in answer.text
    with within(120):
        whole = ("/", "/?cells=all", "/sweeps", "/cluster", "/cluster/figure", "/compare")
        for page in (
            *whole,
            *(f"/sweeps/sweep-{kind}" for kind in ("fifo", "out", "sparse", "texts", "objects", "far")),
        ):
            answer = visitor.get(page)
            assert answer.status_code in (200, 404), page
            assert SECRET not in answer.text


def test_no_log_is_shown_through_a_link(visitor: TestClient, folder: Folder, tmp_path: Path) -> None:
    """`ln -s ~/.ssh logs`, and whatever else leads there."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "id_rsa").write_text(SECRET)
    for number, link in enumerate(("logs", "logs/id_rsa", "stacks", "stacks/deep")):
        run = RunDir(folder.path / "linked" / f"0000000{number}")
        shutil.copytree(folder.well.path, run.path)
        place = run.path / link
        if place.is_dir():
            shutil.rmtree(place)
        place.symlink_to(tmp_path / "keys" / ("id_rsa" if link.endswith("id_rsa") else ""))
        names = ("logs/id_rsa", "stacks/id_rsa", "stacks/deep/id_rsa", "../../../keys/id_rsa", "logs/../logs/id_rsa")
        for name in names:
            for page in ("raw", "new"):
                answer = visitor.get(f"/runs/linked/{run.run_id}/logs/{page}", params={"file": name, "from": 0})
                assert answer.status_code == 404
        answer = visitor.get(f"/runs/linked/{run.run_id}/logs", params={"q": SECRET[:9], "everywhere": True})
        assert "id_rsa" not in answer.text
        assert all(not log.name.endswith("id_rsa") for log in log_list(run))
    inside = RunDir(folder.path / "linked" / "00000000").path.with_name("0000000a")
    shutil.copytree(folder.well.path, inside)
    (inside / "logs" / "latest.log").symlink_to("rank-00000.log")
    answer = visitor.get("/runs/linked/0000000a/logs/raw", params={"file": "logs/latest.log"})
    assert (answer.status_code, answer.text) == (200, "it failed\n")


def test_runs_that_are_reached_through_a_link_are_like_others(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to(folder.path)
    run = find_run(folder.well.run_id, tmp_path / "there")
    assert [log.name for log in log_list(run)] == [log.name for log in log_list(folder.well)]
    assert len(lines_of(run)) == len(lines_of(folder.well))


@pytest.mark.parametrize("field", ["time_to_live", "since", "pid", "started", "host", "launch_id"])
@pytest.mark.parametrize("value", ["soon", None, -1, 0, 10**400, 1e300, [1], {"a": 1}, True])
def test_a_lease_with_another_value(folder: Folder, tmp_path: Path, field: str, value: object) -> None:
    run = RunDir(tmp_path / "name" / "00000000")
    shutil.copytree(folder.well.path, run.path)
    (run.lease / "000001.released").unlink()
    path = run.lease / "000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    holder = read_holder(run)
    assert holder is not None
    assert not set("{}[]") & set(holder.describe())
    assert holder.process.pid >= 0
    assert type(holder.process.pid) is int
