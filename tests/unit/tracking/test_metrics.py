"""The metric log: what is written is what is read, whatever a crash left in between."""

import io
import json
import math
import multiprocessing
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import LeaseLost
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements import metrics
from orchestrator.tracking.measurements.metrics import MetricLog, MetricTail, read_metrics, read_series


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "tiny" / "20260101-000000-abcd")
    run.path.mkdir(parents=True)
    return run


def log(run: RunDir) -> MetricLog:
    return MetricLog(run, check=lambda: None)


def test_a_record_has_the_contracts_form(run: RunDir) -> None:
    log(run).append(3, 24, 3072, {"train/loss": 2.5, "train/grad_norm": math.nan, "a": math.inf, "b": -math.inf})
    record = json.loads(run.metrics_file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert record.pop("time") > 1.7e9
    values = {"train/loss": 2.5, "train/grad_norm": "nan", "a": "inf", "b": "-inf"}
    assert record == {"iteration": 3, "samples": 24, "tokens": 3072, "values": values}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**53),
            st.integers(0, 2**62),
            st.integers(0, 2**62),
            st.dictionaries(st.text(st.characters(exclude_categories=("C",))), st.floats(), max_size=4),
        ),
        max_size=8,
    )
)
def test_what_is_written_is_read(records: list[tuple[int, int, int, dict[str, float]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        for record in records:
            log(run).append(*record)
        read = MetricTail(run.metrics_file).poll()
    assert [(m.iteration, m.samples, m.tokens, repr(m.values)) for m in read] == [(*r[:3], repr(r[3])) for r in records]


def test_nothing_is_written_once_the_lease_is_lost(run: RunDir) -> None:
    def check() -> None:
        raise LeaseLost("another incarnation holds this run")

    with pytest.raises(LeaseLost):
        MetricLog(run, check).append(1, 8, 1024, {"train/loss": 1.0})
    assert not run.metrics_file.exists()


def test_torn_lines_and_foreign_records_are_left_out(run: RunDir) -> None:
    log(run).append(1, 8, 1024, {"train/loss": 3.0})
    with open(run.metrics_file, "ab") as file:
        file.write(b'{"time":1.0,"iteration":2,"sam')
    log(run).append(3, 24, 3072, {"train/loss": 2.0})
    with open(run.metrics_file, "ab") as file:
        file.write(b"\xff\xfe\n[1,2]\n" + b'{"time":1,"iteration":4,"samples":1,"tokens":1,"values":{"a":"x"}}\n\n')
    log(run).append(5, 40, 5120, {"train/loss": 1.0})
    assert [metric.iteration for metric in read_metrics(run)] == [1, 3, 5]


def test_after_a_resume_the_last_record_of_an_iteration_wins_for_each_key(run: RunDir) -> None:
    log(run).append(1, 8, 1024, {"train/loss": 3.0})
    log(run).append(2, 16, 2048, {"train/loss": 2.0, "validation/loss": 2.5})
    log(run).append(3, 24, 3072, {"train/loss": 1.0})
    log(run).append(2, 16, 2048, {"train/loss": 2.25})
    assert read_series(run, "train/loss") == [(1, 3.0), (2, 2.25), (3, 1.0)]
    assert read_series(run, "validation/loss") == [(2, 2.5)]
    assert read_series(run, "train/lr") == []


def test_a_run_without_metrics_has_none(run: RunDir) -> None:
    assert read_metrics(run) == []
    assert MetricTail(run.metrics_file).poll() == []


@given(st.lists(st.integers(1, 40), max_size=40), st.integers(1, 5))
def test_the_tail_yields_each_record_once_however_the_file_grows(cuts: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        for iteration in range(6):
            log(run).append(iteration, iteration, iteration, {"train/loss": iteration / 3})
        content = run.metrics_file.read_bytes()
        run.metrics_file.unlink()
        tail, seen = MetricTail(run.metrics_file), []
        for cut in [*cuts, len(content)]:
            piece, content = content[:cut], content[cut:]
            with open(run.metrics_file, "ab") as file:
                file.write(piece)
            read = tail.poll(limit)
            assert len(read) <= limit
            seen += read
        while read := tail.poll(limit):
            seen += read
        assert [metric.iteration for metric in seen] == list(range(6))
        assert tail.offset == run.metrics_file.stat().st_size


def test_a_tail_continues_from_a_stored_offset(run: RunDir) -> None:
    for iteration in range(4):
        log(run).append(iteration, 0, 0, {})
    first = MetricTail(run.metrics_file)
    first.poll(2)
    assert [metric.iteration for metric in MetricTail(run.metrics_file, first.offset).poll()] == [2, 3]


def test_a_tail_starts_over_when_the_file_was_replaced_by_a_shorter_one(run: RunDir) -> None:
    for iteration in range(4):
        log(run).append(iteration, 0, 0, {})
    tail = MetricTail(run.metrics_file)
    tail.poll()
    run.metrics_file.unlink()
    log(run).append(9, 0, 0, {})
    assert [metric.iteration for metric in tail.poll()] == [9]


def test_a_line_longer_than_a_read_is_one_record(run: RunDir) -> None:
    log(run).append(1, 0, 0, {f"validation/source-{index}/loss": 1.0 for index in range(60_000)})
    log(run).append(2, 0, 0, {})
    assert [len(metric.values) for metric in MetricTail(run.metrics_file).poll()] == [60_000, 0]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read of a metric log."""
    counts: list[int] = []

    class Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size)
            counts.append(len(content))
            return content

    monkeypatch.setattr(metrics, "open", lambda path, mode: Counted(path), raising=False)
    return counts


def test_taking_few_records_at_a_time_reads_little_again(run: RunDir, reads: list[int]) -> None:
    values = {f"train/loss/{number}": 1 / (3 + number) for number in range(12)}  # as long as lines are
    log(run).append(1, 8, 1024, values)
    run.metrics_file.write_bytes(run.metrics_file.read_bytes() * 5000)
    tail, found = MetricTail(run.metrics_file), 0
    while records := tail.poll(90):
        found += len(records)
    assert found == 5000
    assert sum(reads) < 2 * run.metrics_file.stat().st_size


def test_a_line_without_an_end_is_read_in_few_parts(run: RunDir, reads: list[int]) -> None:
    run.metrics_file.write_bytes(b"x" * (4 << 20))
    assert MetricTail(run.metrics_file).poll() == []
    assert len(reads) < 10


def test_lines_that_are_a_record_together_are_none(run: RunDir) -> None:
    """A newline got into the list of the second record, where others have a comma."""
    log(run).append(1, 0, 0, {})
    with open(run.metrics_file, "ab") as file:
        file.write(b'{"time": 1.0, "iteration": 2, "samples": 0, "tokens": 0, "values": {}, "more": [{}\n{}]}\n')
    log(run).append(3, 0, 0, {})
    assert [metric.iteration for metric in MetricTail(run.metrics_file).poll()] == [1, 3]


def _append_many(path: str, first: int) -> None:
    for iteration in range(first, first + 200):
        log(RunDir(Path(path))).append(iteration, 0, 0, {"train/loss": 1.0})


_NUMBERS = st.one_of(st.integers(), st.floats(), st.just(10**400), st.text(max_size=3), st.booleans(), st.none())
_RECORDS = st.fixed_dictionaries(
    {
        **{name: st.one_of(st.integers(0, 2**40), _NUMBERS) for name in ("time", "iteration", "samples", "tokens")},
        "values": st.dictionaries(st.text(max_size=4), st.one_of(st.floats(), _NUMBERS), max_size=3),
    }
)
_ODD = (b"1,2", b"{},{}", b"[", b"]", b"01", b"1e999", b'{"a":-}', b'{"time":1,"values":{"a":1e400,"a":NaN,"b":-0.0}}')
_LINES = st.one_of(
    st.tuples(_RECORDS, st.booleans()).map(
        lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]).encode(errors="surrogatepass")
    ),
    st.binary(max_size=12).filter(lambda line: b"\n" not in line),
    st.sampled_from(_ODD),
)


@given(st.lists(_LINES, min_size=1, max_size=5))
def test_lines_read_together_are_what_each_is_alone(lines: list[bytes]) -> None:
    together = [repr(metric) for metric in metrics.parsed(lines)]
    assert together == [repr(metric) for line in lines for metric in metrics.parsed([line])]
    assert together == [repr(metric) for line in lines for metric in by_the_standard_library(line)]


def by_the_standard_library(line: bytes) -> list[metrics.Metric]:
    """A line that the standard library parses: Pydantic's parser does not take it together with a broken one."""
    return metrics.parsed([line, b"["])


def test_a_reader_beside_a_writer_sees_whole_records_only(run: RunDir) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=_append_many, args=(str(run.path), 0))
    writer.start()
    tail, seen = MetricTail(run.metrics_file), []
    while writer.is_alive():
        seen += [metric.iteration for metric in tail.poll()]
    writer.join()
    seen += [metric.iteration for metric in tail.poll()]
    assert seen == list(range(200))
