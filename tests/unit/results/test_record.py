"""Results on disk, and the keys that they are found by."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from support.refused import refused

from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, dump_asked, file_facts, load_asked
from orchestrator.run_directory.results.record import (
    Measure,
    Result,
    journal_path,
    metric_values,
    newest_results,
    read_result,
    result_path,
    results_of,
    write_result,
)
from orchestrator.run_directory.rundir import RunDir

RESULT = Result(
    name="lambada/test.jsonl",
    task="lambada",
    key="0123456789abcdef",
    iteration=500,
    checkpoint="/somewhere/iter_0000500",
    metrics={"accuracy": Measure(0.25, 0.01), "perplexity": Measure(math.inf)},
    counts={"passages": 4},
    options={"strict": True},
    files=[{"path": "/data/test.jsonl", "bytes": 3, "sha256": "00"}],
    finished=10.0,
    seconds=2.0,
    setting={"dtype": "fp32"},
)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = result_path(tmp_path / "evaluations", 500, RESULT.name, RESULT.key)
    assert path.name == "iter_0000500.lambada-test.jsonl.01234567.json"
    assert journal_path(path).name == "iter_0000500.lambada-test.jsonl.01234567.part.jsonl"
    write_result(path, RESULT)
    assert read_result(path) == RESULT
    assert '"value": "inf"' in path.read_text()
    path.write_text(path.read_text()[:-30])
    assert read_result(path) is None
    assert read_result(tmp_path / "nothing") is None


def test_the_newest_of_each_name_counts(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    assert results_of(run) == []
    earlier = replace(RESULT, iteration=100, finished=99.0)
    again = replace(RESULT, key="ff", finished=20.0, metrics={"accuracy": Measure(0.5)})
    other = replace(RESULT, name="text/book", key="aa")
    for result in (again, RESULT, earlier, other):
        write_result(result_path(run.evaluations, result.iteration, result.name, result.key), result)
    (run.evaluations / "iter_0000500.torn.00.part.jsonl").write_text("{}")
    (run.evaluations / "iter_0000500.torn.00.json").write_text("{")
    assert results_of(run) == [earlier, RESULT, other, again]
    assert newest_results(run) == [again, other]


def test_names_beside_a_runs_other_metrics() -> None:
    assert metric_values(RESULT) == {
        "evaluation/lambada/test.jsonl/accuracy": 0.25,
        "evaluation/lambada/test.jsonl/accuracy_stderr": 0.01,
        "evaluation/lambada/test.jsonl/perplexity": math.inf,
    }


def test_a_key_is_of_contents_and_not_of_places(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").write_text("text")
    (tmp_path / "c").write_text("texT")
    a, b, c = (
        EvaluationRequest("text", name, name, {"seq_length": 8}, [file_facts(tmp_path / name)]) for name in "abc"
    )
    assert a.key("checkpoint", "tokenizer") == b.key("checkpoint", "tokenizer")
    others = {
        c.key("checkpoint", "tokenizer"),
        a.key("other", "tokenizer"),
        a.key("checkpoint", "other"),
        replace(a, kind="wikitext").key("checkpoint", "tokenizer"),
        replace(a, options={"seq_length": 9}).key("checkpoint", "tokenizer"),
        a.key("checkpoint", "tokenizer", "contents"),
    }
    assert len(others | {a.key("checkpoint", "tokenizer")}) == 7
    assert load_asked(dump_asked([a, c])) == [a, c]


def test_a_folder_is_its_files_by_name(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "1.txt").write_text("first")
        (tmp_path / folder / "2.txt").write_text("second")
    one, two = file_facts(tmp_path / "one"), file_facts(tmp_path / "two")
    assert (one["bytes"], one["sha256"]) == (11, two["sha256"])
    (tmp_path / "two" / "2.txt").rename(tmp_path / "two" / "3.txt")
    assert file_facts(tmp_path / "two")["sha256"] != one["sha256"]
    with refused("file_not_found", "nowhere"):
        file_facts(tmp_path / "nowhere")
