"""Reports on runs that were written by hand: what is in them, what is kept out, and that nothing of a run is markup."""

from __future__ import annotations

import errno
import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.event_log import append_event
from support.refusals import fill_the_disk
from support.training import tiny_job

from orchestrator.cli.main import main
from orchestrator.dashboard.report import __main__ as program
from orchestrator.dashboard.report.building import ReportRequest, build
from orchestrator.dashboard.report.document import Curves, Document, Facts, Lines, Paragraph, Section, Table
from orchestrator.dashboard.report.drawing import drawn
from orchestrator.dashboard.report.html import to_html
from orchestrator.dashboard.report.markdown import sparkline, to_markdown
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import add_generation, create_run
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.tracking.measurements.metrics import MetricLog

EVIL = "<script>alert(1)</script>"
COMMIT = {"used_by": "working directory", "root": "/x", "commit": "ab" * 20, "dirty": True, "untracked": []}
CODE = CodeState({"version": "9.9", "repositories": [COMMIT]}, b"")


def run_of(job: JobSpec, folder: Path, losses: Sequence[float] = (3.0, 2.0, 1.0)) -> RunDir:
    """A run that measured these losses."""
    run = create_run(job, dump_resolved(job), folder, CODE)
    append_event(run, "launched", launch_id="1", host="node1")
    log = MetricLog(run, check=lambda: None)
    for step, loss in enumerate(losses, 1):
        log.append(step, 8 * step, 512 * step, {"train/loss": loss, "throughput/tokens_per_second": 100.0})
    return run


def failed(run: RunDir) -> RunDir:
    told = {"cause": "bug", "message": f"ValueError: {EVIL} & more", "evidence": [f"logs/rank-00000.log:3 {EVIL}"]}
    append_event(run, "exited", launch_id="1", code=1, iteration=3, **told)
    return run


class Read(HTMLParser):
    """The elements of a page, and its text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._within = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._within = tag
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.text += data


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tiny_job("first"), tmp_path)
    fill_the_disk(monkeypatch, errno.EROFS)
    assert program.main([str(run.path), "--output", str(tmp_path / "r.md")]) == 2
    assert capsys.readouterr().err.startswith(f"error: nothing can be written in {tmp_path}: Read-only file system; ")


def test_a_report_on_two_runs(tmp_path: Path) -> None:
    first = run_of(tiny_job("first"), tmp_path)
    second = failed(run_of(tiny_job("second", optimizer={"lr": 0.5}), tmp_path, [4.0, 5.0, math.nan]))
    report = build(ReportRequest((first, second), "Two rates", f"mine {EVIL}\n\nand more"))
    titles = [(part.title, part.level) for part in report.sections]
    assert titles[:4] == [("Comparison", 1), ("Differences", 2), ("Results", 2), ("Curves", 2)]
    assert [title for title, level in titles if level == 1] == ["Comparison", first_key(first), first_key(second)]
    light = to_html(report, light=True)
    page = Read(light)
    assert page.tags.count("svg") == light.count("<svg") > 4
    assert page.tags.count("script") == 1  # which is for light and dark
    assert all(link.startswith("#part") for link in page.links)
    for words in ("Two rates", f"mine {EVIL}", "optimizer.lr", "0.5", "abababababab with changes", "node1", EVIL):
        assert words in page.text
    heavy = to_html(report, light=False)
    assert len(heavy) > 4_000_000
    assert EVIL not in heavy.replace("alert(1)<\\/script", "")
    figures = re.findall(r'<div hidden id="([^"]+)">', heavy)
    assert len(figures) == len(set(figures)) == light.count("<svg")
    markdown = to_markdown(report)
    assert "<" not in re.sub(r"\\<|```text.*?```|mine <script>alert\(1\)</script>", "", markdown, flags=re.DOTALL)
    assert "| Loss | first | █▄▁ | 3 | 1 |" in markdown


def first_key(run: RunDir) -> str:
    return f"{run.name}/{run.run_id}"


def test_names_of_curves_are_as_they_were_written(tmp_path: Path) -> None:
    run = run_of(tiny_job("named"), tmp_path)
    MetricLog(run, check=lambda: None).append(4, 8, 512, {"validation/a&b/loss": 1.0})
    document = build(ReportRequest((run,)))
    assert "&amp;" not in Read(to_html(document, light=True)).text
    assert "| Loss | validation/a&b/loss |" in to_markdown(document)


def test_drawings_have_units(tmp_path: Path) -> None:
    run = run_of(tiny_job("used"), tmp_path)
    log = MetricLog(run, check=lambda: None)
    for step in (4, 5):
        log.append(step, 8, 512, {"memory/peak_bytes": step * 2.0**30, "throughput/mfu": 0.1 * step})
    document = build(ReportRequest((run,)))
    page = Read(to_html(document, light=True))
    for words in ("GiB", "tokens/s", "45%"):
        assert words in page.text
    assert "| Peak memory (GiB) | " in to_markdown(document)


def test_drawings_have_the_colours_of_their_figures(tmp_path: Path) -> None:
    runs = tuple(run_of(tiny_job(name), tmp_path) for name in ("a", "b"))
    for run in runs:
        MetricLog(run, check=lambda: None).append(4, 8, 512, {"validation/loss": 1.0})
    document = build(ReportRequest(runs))
    [curves] = [block for part in document.sections if part.title == "Curves" for block in part.blocks][:1]
    assert isinstance(curves, Curves)
    for _, figure in curves.charts:
        found = {line.name.split()[0]: line.colour for line in drawn(figure).lines}
        assert found == {"a": 1, "b": 2}, figure["layout"]["title"]


def test_a_drawing_says_what_happened_by_signs_and_not_by_colours_alone(tmp_path: Path) -> None:
    run = run_of(tiny_job("signed"), tmp_path)
    append_event(run, "stop_requested", by="SIGINT", iteration=2)
    append_event(run, "resumed", checkpoint="iter_0000002", iteration=2)
    document = build(ReportRequest((failed(run),)))
    loss = to_html(document, light=True).partition("<figcaption>Loss</figcaption>")[2].partition("</ul>")[0]
    signs = dict(re.findall(r'<text x="([\d.]+)" y="10" text-anchor="middle">([^<]+)</text>', loss))
    stop, end = sorted(signs, key=float)
    assert (signs[stop], signs[end]) == ("■↻", "✕")
    assert re.findall(r"<li>([^<]+)</li>", loss) == ["↻ resumed", "✕ failed", "■ asked to stop"]
    quiet = to_html(build(ReportRequest((run_of(tiny_job("quiet"), tmp_path),))), light=True)
    assert "asked to stop" not in quiet


def test_many_checkpoints_are_one_event(tmp_path: Path) -> None:
    run = run_of(tiny_job("saves"), tmp_path)
    for step in range(1, 101):
        append_event(run, "checkpoint_saved", iteration=step, bytes=1000, seconds=0.1)
    page = Read(to_html(build(ReportRequest((run,))), light=True)).text
    assert "100 checkpoints saved, the last at iteration 100" in page
    assert "saved a checkpoint at iteration 50" not in page
    assert "created" in page


def test_a_state_is_said_once(tmp_path: Path) -> None:
    runs = tuple(run_of(tiny_job(name), tmp_path) for name in ("a", "b"))
    for run in runs:
        append_event(run, "exited", launch_id="1", code=0, cause="completed", message="", iteration=3)
    assert "What is known" not in Read(to_html(build(ReportRequest(runs)), light=True)).text
    assert (
        "What is known"
        in Read(to_html(build(ReportRequest((*runs, failed(run_of(tiny_job("c"), tmp_path))))), light=True)).text
    )


def test_what_a_resume_changed_is_told(tmp_path: Path) -> None:
    run = run_of(tiny_job("changed"), tmp_path)
    again = tiny_job("changed", optimizer={"lr": 0.25})
    add_generation(run, again, dump_resolved(again))
    text = to_markdown(build(ReportRequest((run,))))
    assert "| Changed by a resume | spec | spec 2 |" in text
    assert "| optimizer.lr | 0.001 | 0.25 |" in text


def test_secrets_stay_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    env = {"WANDB_API_KEY": "wandb-zq81x7kk", "OTHER": "plain-as-day", "HF_TOKEN": "${env:MY_TOKEN}"}
    runs = [
        run_of(tiny_job(name, launch={"env": mine}, tracking={"uri": "https://me:secret@mlflow.example"}), tmp_path)
        for name, mine in (("open", {}), ("closed", env))
    ]
    message = "refused: hunter2-hunter2, wandb-zq81x7kk at https://me:secret@mlflow.example"
    append_event(runs[1], "exited", launch_id="1", code=1, cause="bug", message=message, evidence=[message])
    report = build(ReportRequest(tuple(runs), note=message))
    for text in (to_html(report, light=True), to_markdown(report), to_html(report, light=False)):
        for secret in ("hunter2", "wandb-zq81x7kk", "plain-as-day", "me:secret"):
            assert secret not in text
        assert "refused: ${env:MY" in text.replace("\\", "")


def test_runs_in_which_little_can_be_read(tmp_path: Path) -> None:
    run = run_of(tiny_job("torn"), tmp_path)
    run.resolved().write_text('{"model": 3, "data": ')
    run.events_file.write_bytes(b'{"event": "started", "time": "x"\n{"event": 7}\n')
    (run.path / "code.json").write_text("[]")
    report = build(ReportRequest((run,)))
    assert "damaged" in to_markdown(report)
    assert "<h3>Events</h3>" in to_html(report, light=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "there is no run nonsense"),
        (["here", "-o", "report.txt"], "a report is .html or .md"),
        (["here", "-o", "there.md"], "already exists"),
        (["odd", "here", "-o", "there.md"], "already exists"),
        (["here", "-o", "no/where.html"], "does not exist"),
        (["here", "-o", "x.md", "--light"], "--light is for HTML"),
        (["here", "--note", "a", "--note-file", "b"], "have the same purpose"),
        (["here", "--note-file", "missing.md"], "missing.md cannot be read"),
    ],
)
def test_one_message_for_what_cannot_be_done(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run_of(tiny_job("here"), tmp_path / "runs")
    odd = run_of(tiny_job("odd"), tmp_path / "runs")
    odd.events_file.unlink(missing_ok=True)
    odd.events_file.mkdir()
    Path("there.md").touch()
    assert main(["report", *arguments]) == 2
    heard = capsys.readouterr().err
    assert said in heard
    assert heard.startswith("error: ")


def test_the_command_writes_a_file_and_says_so(tmp_path: Path) -> None:
    run_of(tiny_job("here"), tmp_path / "runs")
    (tmp_path / "note.md").write_text("From a *file*.")
    command = [sys.executable, "-m", "orchestrator", "report", "here", "--light", "--note-file", "note.md", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    path = Path(said["path"])
    assert re.fullmatch(r"report-here-[0-9a-f]{8}\.html", path.name)
    assert path.stat().st_size == said["bytes"]
    assert "From a *file*." in path.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["note.md", path.name, "runs"])


texts = st.text(max_size=30)
numbers = st.none() | st.floats() | st.integers(-(10**12), 10**12)
figures = st.lists(st.lists(st.tuples(st.integers(0, 1000), numbers), max_size=30), max_size=4).map(
    lambda curves: {
        "data": [
            {"type": "scatter", "name": f"<{n}>", "x": [x for x, _ in points], "y": [y for _, y in points]}
            for n, points in enumerate(curves)
        ],
        "layout": {"title": {"text": "a & b"}},
    }
)


@settings(max_examples=examples(40))
@given(texts, st.lists(texts, max_size=4), figures)
def test_nothing_of_a_run_is_markup(text: str, lines: list[str], figure: dict[str, Any]) -> None:
    blocks = (
        Paragraph(text),
        Facts(((text, text),)),
        Table((text, ""), ((text, text),)),
        Lines(tuple(lines)),
        Curves((("run1-loss", figure),)),
    )
    report = Document(text, 0.0, text, "1", text, (Section(text, 1, blocks, "failed"),))
    plain = Document(
        "a", 0.0, "a", "1", "a", (Section("a", 1, (Paragraph("a"), Facts((("a", "a"),)), *blocks[2:]), "failed"),)
    )
    assert set(Read(to_html(report, light=True)).tags) <= {*Read(to_html(plain, light=True)).tags, "p", "th"}
    shown = to_markdown(report)
    assert len([line for line in shown.splitlines() if line.startswith("#")]) <= 2 + text.count("#") + len(
        [line for each in (*lines, text) for line in each.splitlines() if line.startswith("#")]
    )


@given(figures)
def test_drawings_stay_within_their_frame(figure: dict[str, Any]) -> None:
    drawing = drawn(figure)
    places = [place for line in drawing.lines for part in line.parts for place in part.split()]
    for place in places:
        x, _, y = place.partition(",")
        assert 61 <= float(x) <= 549
        assert 11 <= float(y) <= 251
    assert all(61 <= place <= 549 for place, _ in drawing.x_ticks)
    assert all(11 <= place <= 251 for place, _ in drawing.y_ticks)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=200))
def test_a_sparkline_is_short(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == min(len(values), 40)
    assert set(line) <= set("▁▂▃▄▅▆▇█")


def test_parameters_are_those_of_the_model(tmp_path: Path) -> None:
    run = run_of(tiny_job("halves"), tmp_path)
    append_event(run, "started", launch_id="1", parameters=935_000, total_parameters=1_869_000)
    text = to_markdown(build(ReportRequest((run,))))
    assert "- Parameters: 1.87M\n" in text
    assert "- Parameters of rank 0: 935k\n" in text
