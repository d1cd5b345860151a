"""Logs in pages, followed and searched."""

from __future__ import annotations

import html
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.limits import set_limits
from support.refused import refused

from orchestrator.review.logs import pages as reading
from orchestrator.review.logs.log_search import SearchPattern, search
from orchestrator.run_directory.rundir import RunDir


def log_of(path: Path, content: bytes) -> reading.LogFile:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return reading.LogFile(f"logs/{path.name}", path, path.parent, len(content), 0.0)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x1b[1;32mgreen\x1b[0m\n", "green"),
        (b"\x1b]0;a title\x07text\r\n", "text"),
        (b" 10%|#   |\r 50%|##  |\r100%|####|\n", "100%|####|"),
        (b"a\tb\x00c\x07\n", "a\tb\ufffdc\ufffd"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"x" * 5000, "x" * 4000 + " … (1,000 more characters)"),
    ],
)
def test_a_line_is_shown_as_a_terminal_leaves_it(raw: bytes, text: str) -> None:
    assert reading.shown(raw) == text


texts = st.lists(st.sampled_from([b"", b"a", b"bb", b"c" * 40]), max_size=60)


@given(lines=texts, is_torn=st.booleans(), most=st.integers(1, 12), line=st.integers(1, 80))
def test_pages_agree_with_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], is_torn: bool, most: int, line: int
) -> None:
    content = b"\n".join(lines) + (b"torn" if is_torn else b"\n" if lines else b"")
    log = log_of(tmp_path_factory.mktemp("run") / "x.log", content)
    whole = [(number, reading.shown(raw)) for number, raw in enumerate(content.splitlines(), 1)]
    tail = reading.last_page(log, most)
    assert [(each.number, each.text) for each in tail.lines] == whole[-most:]
    assert tail.is_last
    page = reading.page_at(log, line, most)
    wanted = whole[line - 1 : line - 1 + most] or whole[-most:]
    assert [(each.number, each.text) for each in page.lines] == wanted


long = st.lists(st.sampled_from([b"a", b"<" * 900, b'"' * 9000, "é".encode() * 1500, b"\r" * 50]), max_size=60)


@given(lines=long, most=st.integers(2, 300))
def test_pages_have_room_for_their_lines_and_follow_each_other(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], most: int
) -> None:
    log = log_of(tmp_path_factory.mktemp("run") / "x.log", b"".join(line + b"\n" for line in lines))
    page = reading.last_page(log, most)
    backward, forward = [page], [reading.page_at(log, 1, most)]
    while not backward[-1].is_first:
        backward.append(reading.page_before(log, backward[-1].lines[0].number, most))
    while not forward[-1].is_last:
        forward.append(reading.page_at(log, forward[-1].lines[-1].number + 1, most))
    for pages in (backward[::-1], forward):
        assert [line.number for page in pages for line in page.lines] == list(range(1, len(lines) + 1))
        for page in pages:
            sent = sum(len(html.escape(line.text).encode()) for line in page.lines)
            assert sent <= reading.PAGE_BYTES or len(page.lines) == 1


def test_a_search_ends_where_a_page_is_full(tmp_path: Path) -> None:
    logs = [log_of(tmp_path / f"{name}.log", b"word " + b"&" * 2000 + b"\n") for name in range(30)]
    found, numbers = search(logs, SearchPattern("word")), 0
    assert 1 <= len(found.lines) < 10
    while found.rest is not None:
        numbers += len(found.lines)
        found = search(logs, SearchPattern("word"), start=found.rest)
    assert numbers + len(found.lines) == 30


def test_line_numbers_of_a_large_log_hold_when_it_grows_and_when_it_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    log = log_of(path, b"".join(b"line %d of many, with some text\n" % n for n in range(1, 100_001)))
    assert log.bytes > 3 << 20
    assert reading.last_page(log).lines[-1].number == 100_000
    for number in (1, 2, 33_000, 66_001, 100_000):
        [line] = reading.page_at(log, number, most=1).lines
        assert (line.number, line.text) == (number, f"line {number} of many, with some text")
    with open(path, "ab") as file:
        file.write(b"one more\n" * 100_000)
    assert reading.last_page(log, 1).lines[0].number == 200_000
    os.replace(log_of(tmp_path / "new.log", b"first\nsecond\n").path, path)
    assert [(line.number, line.text) for line in reading.last_page(log).lines] == [(1, "first"), (2, "second")]


def test_a_follower_gets_whole_lines_once_and_notices_a_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = log_of(path, b"one\ntwo\nthr")
    page = reading.page_from(log, 4)
    assert [(line.number, line.text) for line in page.lines] == [(2, "two")]
    path.write_bytes(b"one\ntwo\nthree\n")
    page = reading.page_from(log, page.end)
    assert [(line.number, line.text) for line in page.lines] == [(3, "three")]
    assert reading.page_from(log, page.end).lines == ()
    full = reading.page_from(log, 0, most=2)
    assert not full.is_last
    path.write_bytes(b"one\ntwo\nthree\nfou")
    assert reading.page_from(log, full.end).is_last  # the rest is no whole line: nothing to ask for yet
    path.write_bytes(b"anew\n")
    assert [line.text for line in reading.page_from(log, page.end).lines] == ["anew"]


def test_a_line_without_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    log = log_of(tmp_path / "x.log", b"first\n" + b"y" * (5 << 20) + b"\nlast\n")
    page = reading.page_at(log, 1)
    assert [line.text[:10] for line in page.lines] == ["first", "y" * 10]
    assert len(page.lines[1].text) < 5000
    assert reading.last_page(log).lines[-1].text == "last"


def test_only_what_lies_in_the_run_directory_is_a_log(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "job" / "run")
    run.logs.mkdir(parents=True)
    run.stacks.mkdir()
    for name in ("mlflow.log", "rank-00001.log", "rank-00000.log", "launcher.log"):
        (run.logs / name).write_text("x\n")
    (run.stacks / "rank-00000.txt").write_text("stack\n")
    (tmp_path / "secret").write_text("secret\n")
    (run.logs / "leads-out.log").symlink_to(tmp_path / "secret")
    (run.logs / "round.log").symlink_to("round.log")
    os.mkfifo(run.logs / "pipe.log")
    (run.logs / "folder").mkdir()
    names = ["logs/launcher.log", "logs/rank-00000.log", "logs/rank-00001.log", "logs/mlflow.log"]
    assert [log.name for log in reading.log_list(run)] == [*names, "stacks/rank-00000.txt"]
    assert reading.find_log(run, "logs/../../secret") is None
    assert reading.log_list(RunDir(tmp_path / "none")) == []


def test_the_first_rank_is_read_first_and_the_launcher_where_no_rank_printed(tmp_path: Path) -> None:
    launcher = log_of(tmp_path / "launcher.log", b"x\n")
    silent, spoke = log_of(tmp_path / "rank-00000.log", b""), log_of(tmp_path / "rank-00001.log", b"x\n")
    assert reading.first_to_read([launcher, silent, spoke]) is spoke
    assert reading.first_to_read([launcher, silent]) is launcher
    assert reading.first_to_read([]) is None


def test_a_search_goes_on_where_it_ended_and_counts_lines(tmp_path: Path) -> None:
    content = b"".join(b"\x1b[32mstep\x1b[0m %d of <b>it</b>\n" % n for n in range(1, 60_001))
    logs = [log_of(tmp_path / "a.log", content), log_of(tmp_path / "b.log", b"nothing\nSTEP 7000 again\n")]
    found = search(logs, SearchPattern("step 7"), most=3)
    assert [line.number for _, line in found.lines] == [7, 70, 71]
    assert found.rest is not None
    rest = search(logs, SearchPattern("step 7"), start=found.rest)
    assert [line.number for name, line in rest.lines if name == "logs/a.log"][:2] == [72, 73]
    few = search(logs, SearchPattern("step 7000"))
    assert [(name, line.number) for name, line in few.lines] == [("logs/a.log", 7000), ("logs/b.log", 2)]
    assert few.rest is None
    regex = search(logs, SearchPattern(r"^step \d+999 of", is_regex=True))
    assert [line.number for _, line in regex.lines] == [*range(1999, 60_000, 1000)]


def test_a_search_looks_at_what_is_shown(tmp_path: Path) -> None:
    bar = b"".join(b"\r%3d%%|%s|" % (done, b"#" * 100) for done in range(100))
    assert len(bar) > reading.LONGEST_LINE
    log = log_of(tmp_path / "bars.log", b"begin\n" + bar + b"\rstep 7 done\r\n" + bar + b"\n")
    for wanted in (SearchPattern("STEP 7"), SearchPattern("^step 7 done$", is_regex=True)):
        assert [(line.number, line.text) for _, line in search([log], wanted).lines] == [(2, "step 7 done")]
    assert [line.number for _, line in search([log], SearchPattern("42%")).lines] == []
    assert [line.number for _, line in search([log], SearchPattern("99%")).lines] == [3]


def test_an_expression_that_is_none_is_refused_and_one_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(tmp_path / "a.log", b"a" * 60 + b"\n")
    with refused("malformed_pattern"):
        search([log], SearchPattern("(", is_regex=True))
    set_limits(monkeypatch, to_end_a_search=-5.0)
    found = search([log], SearchPattern("(a+)+$b", is_regex=True))
    assert found.problem is not None
    assert "too long" in found.problem


def test_the_lines_that_show_an_end_are_those_with_its_message(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "job" / "run")
    run.logs.mkdir(parents=True)
    (run.logs / "launcher.log").write_text("began\nended\n")
    (run.logs / "rank-00003.log").write_text("a\nb\nTraceback\n  File x\nValueError: no luck\nbye\n")
    found = reading.closing_lines(run, "ValueError: no luck")
    lines = ["b", "Traceback", "  File x", "ValueError: no luck"]
    assert found == [f"logs/rank-00003.log:{number}  {line}" for number, line in enumerate(lines, 2)]
    assert reading.closing_lines(run, "") == ["logs/launcher.log:1  began", "logs/launcher.log:2  ended"]
    assert reading.closing_lines(RunDir(tmp_path / "none"), "x") == []


def test_the_end_of_a_log_that_is_too_long_to_count_has_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "job" / "run")
    run.logs.mkdir(parents=True)
    (run.logs / "launcher.log").write_text("a line of sixteen\n" * 600 + "no luck\n")
    [*_, last] = reading.closing_lines(run, "no luck")
    assert last == "logs/launcher.log:601  no luck"
    set_limits(monkeypatch, bytes_of_evidence=1000)
    [*_, last] = reading.closing_lines(run, "no luck")
    assert last == "logs/launcher.log  no luck"


def test_nobody_waits_for_the_counting_of_another_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"one of many lines\n" * 100_000
    slow, other = log_of(tmp_path / "slow.log", lines), log_of(tmp_path / "other.log", lines)
    counting, may_go_on = threading.Event(), threading.Event()

    class SlowFile(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            if size == 1 << 20:
                counting.set()
                assert may_go_on.wait(60)
            return super().read(size)

    def opened(path: Path, folder: Path) -> io.BufferedReader:
        return SlowFile(io.FileIO(path)) if path == slow.path else open(path, "rb")

    monkeypatch.setattr("orchestrator.review.logs.pages.open_stored", opened)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(reading.last_page, slow)
        try:
            assert counting.wait(60)
            assert pool.submit(reading.last_page, other).result(30).lines[-1].number == 100_000
            assert not waiting.done()
        finally:
            may_go_on.set()
        assert waiting.result(60).lines[-1].number == 100_000
