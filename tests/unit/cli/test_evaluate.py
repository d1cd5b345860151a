"""`orchestrator evaluate`: what is asked, what is refused before anything starts, and what is known already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.refusals import before, fail_at, let_nothing_be_written
from support.refused import refused
from support.this_machine import Libraries
from support.training import four_layer_job, make_run

from orchestrator.cli.main import main
from orchestrator.cli.models.evaluation_options import Options, asked_of
from orchestrator.data.tokenizers.vocabulary import content_hash
from orchestrator.errors import JobError, MissingDependency, UserError
from orchestrator.run_directory.checkpoints.commit_markers import read_commit, write_commit
from orchestrator.run_directory.results.evaluation_request import checkpoint_digest
from orchestrator.run_directory.results.record import Measure, Result, result_path, write_result
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

BERT = {"architecture": "bert", "position_embedding_type": "learned_absolute", "vocab_size": 300}
T5 = {"architecture": "t5", "position_embedding_type": "relative", "decoder_seq_length": 16, "vocab_size": 300}


def job(model: Mapping[str, Any] | None = None, **sections: Any) -> JobSpec:
    return four_layer_job("job", model=model or {}, **sections)


def fine_tuned(validation: list[str]) -> JobSpec:
    task = {"name": "mnli", "train": "train.tsv", "validation": validation}
    return job(BERT, task=task, data={"random_tokens": False})


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("some text")
    return path


def test_each_file_is_a_task(tmp_path: Path, text: Path) -> None:
    other = tmp_path / "folder" / "text"
    other.parent.mkdir()
    other.write_text("other text")
    options = Options(files={"text": [text, other], "lambada": [text]}, overlapping_eval=8)
    first, second, third = asked_of(options, job(), "run a/b")
    assert first.options == {"add_bos": False, "seq_length": 64, "overlapping_eval": 8}
    assert third.options == {"add_bos": False, "strict": True}
    assert [one.name for one in (first, second, third)] == [
        f"text/{tmp_path.name}.text",
        "text/folder.text",
        "lambada/text",
    ]
    assert first.files[0]["bytes"] == 9
    [only] = asked_of(Options(files={"text": [text]}, seq_length=1000), job(), "run a/b")
    assert (only.name, only.options["seq_length"]) == ("text/text", 1000)


def test_a_fine_tuned_bert_is_asked_what_its_job_holds_out(text: Path) -> None:
    [asked] = asked_of(Options(), fine_tuned([str(text)]), "run a/b")
    assert (asked.kind, asked.name, asked.where) == ("mnli", "mnli/text", str(text))


ABSOLUTE = {"position_embedding_type": "learned_absolute"}


@pytest.mark.parametrize(
    ("options", "job_", "said"),
    [
        ({}, job(), "name what to measure: --wikitext, --text"),
        ({"files": {"text": ["nowhere"]}}, job(), "nowhere is not there"),
        ({"files": {"lambada": ["."]}}, job(), "is a folder, but a file is needed"),
        ({"files": {"text": ["t"]}}, job(BERT), "run a/b cannot be measured by --text: a BERT predicts masked tokens"),
        ({"files": {"lambada": ["t"]}}, job(T5), "run a/b cannot be measured by --lambada: a T5 restores spans"),
        ({"harness": ["t"]}, job(BERT), "run a/b cannot be measured by --lm-eval"),
        ({"files": {"mnli": ["t"]}}, job(), "run a/b cannot be measured by --mnli: it has no head for MNLI"),
        ({"files": {"mnli": ["t"]}}, job(BERT), "fine-tune a BERT on it first"),
        (
            {"files": {"race": ["t"]}},
            fine_tuned(["t"]),
            "run a/b was fine-tuned on MNLI, but --race needs one that was fine-tuned on RACE",
        ),
        ({"files": {"text": ["t"]}, "seq_length": 65}, job(ABSOLUTE), "--seq-length 65 is more than the 64 positions"),
        ({"files": {"text": ["t"]}, "overlapping_eval": 65}, job(), "--overlapping-eval 65 is more than the 64 tokens"),
        (
            {"files": {"text": ["t"]}, "seq_length": 1, "add_bos": True},
            job(),
            "--seq-length 1 is too short: 2 at least",
        ),
        ({"harness": ["nowhere.yaml"]}, job(), "--lm-eval nowhere.yaml is not there"),
        ({"harness": ["task"], "include_path": ["nowhere"]}, job(), "--include-path nowhere is not a folder"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(
    options: dict[str, Any],
    job_: JobSpec,
    said: str,
    tmp_path: Path,
    libraries: Libraries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    libraries.there("lm_eval")
    files = {kind: [Path(path) for path in paths] for kind, paths in options.pop("files", {}).items()}
    folders = [Path(folder) for folder in options.pop("include_path", [])]
    with pytest.raises(UserError) as error:
        asked_of(Options(files=files, include_path=folders, **options), job_, "run a/b")
    assert said in str(error.value)


def test_the_harness_is_an_extra(libraries: Libraries) -> None:
    libraries.missing("lm_eval")
    with refused("missing_dependency", "megatron-orchestrator[lm-eval]", kind=MissingDependency):
        asked_of(Options(harness=["task"]), job(), "run a/b")


@pytest.fixture
def measured(tmp_path: Path, text: Path) -> RunDir:
    """A run with a result; its checkpoint has no weights, so that whoever would load it fails."""
    spec = job(data={"random_tokens": True, "tokenizer": {"type": "byte_level"}})
    run = make_run(tmp_path / "runs", spec)
    run.checkpoint(7).mkdir(parents=True)
    write_commit(run.checkpoint(7), iteration=7, consumed_samples=1, files={})
    commit = read_commit(run.checkpoint(7))
    assert commit is not None
    [asked] = asked_of(Options(files={"text": [text]}), spec, "")
    key = asked.key(checkpoint_digest(commit.files), content_hash(spec.data.tokenizer))
    result = Result(
        **{"name": asked.name, "task": "text", "key": key, "iteration": 7, "checkpoint": str(commit.path)},
        **{"metrics": {"perplexity": Measure(12.5, 0.25), "loss": Measure(2.5)}, "counts": {"tokens": 1234}},
        **{"options": asked.options, "files": asked.files, "finished": 1.0, "seconds": 1.0},
    )
    write_result(result_path(run.evaluations, 7, result.name, key), result)
    return run


def test_what_was_measured_is_shown_and_nothing_started(
    measured: RunDir, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, "orchestrator.cli.models.evaluate.run_inference", AssertionError("it starts a program"))
    assert main(["evaluate", str(measured.path), "--text", str(text)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"run {measured.name}/{measured.run_id}",
        "TASK       ITERATION  METRIC      VALUE  STDERR  OF",
        "text/text  7          perplexity  12.5   0.25    1,234 tokens",
        "                      loss        2.5    -",
    ]
    assert main(["evaluate", str(measured.path), "--text", str(text), "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out)
    assert record["metrics"]["perplexity"] == {"value": 12.5, "stderr": 0.25}
    # By its contents: the same bytes elsewhere are known, others are not; another window is another result.
    copy = text.with_name("copy")
    copy.write_bytes(text.read_bytes())
    for path, *more in ((copy, "--seq-length", "32"), (copy, "--again")):
        with pytest.raises(AssertionError):
            main(["evaluate", str(measured.path), "--text", str(path), *more])
    text.write_text("another text")
    with pytest.raises(AssertionError):
        main(["evaluate", str(measured.path), "--text", str(text)])


def test_one_table_is_of_one_checkpoint(
    measured: RunDir, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known leads to the checkpoint that the rest is measured of, whatever a training writes meanwhile."""
    given: list[list[str]] = []

    def started(spec: JobSpec, arguments: list[str], *_: Any) -> None:
        given.append(arguments)
        raise AssertionError(spec)

    before(monkeypatch, "orchestrator.cli.models.evaluate.run_inference", started)
    other = tmp_path / "other"
    other.write_text("other text")
    for more in ([], ["--again"]):
        with pytest.raises(AssertionError):
            main(["evaluate", str(measured.path), "--text", str(text), "--text", str(other), *more])
    assert ["--iteration=7" in arguments for arguments in given] == [True, False]


def test_what_was_measured_before_is_shown_though_the_rest_fails(
    measured: RunDir, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_at(monkeypatch, "orchestrator.cli.models.evaluate.run_inference", JobError("the evaluation failed"))
    other = tmp_path / "other"
    other.write_text("other text")
    assert main(["evaluate", str(measured.path), "--text", str(text), "--text", str(other), "--json"]) == 1
    said = capsys.readouterr()
    assert [record["name"] for record in json.loads(said.out)] == ["text/text"]
    assert said.err == "error: the evaluation failed\n"
    assert main(["evaluate", str(measured.path), "--text", str(other)]) == 1, "of nothing there is no table"
    assert capsys.readouterr().out == ""


def test_a_file_is_no_place_for_results(measured: RunDir, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(measured.path), "--text", str(text), "--output", str(text)]) == 2
    assert f"--output {text} is not a folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said_at_once(
    measured: RunDir, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_nothing_be_written(monkeypatch)
    assert main(["evaluate", str(measured.path), "--text", str(text), "--again"]) == 2
    said = f"nothing can be written in {measured.evaluations}, where the results go: name another folder with --output"
    assert capsys.readouterr().err == f"error: {said}\n"
    assert main(["evaluate", str(measured.path), "--text", str(text)]) == 0, "what is known needs no place"


def test_status_shows_it(measured: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(measured.path)]) == 0
    assert "  evaluations  text/text: perplexity 12.5 ± 0.25 (iteration 7)" in capsys.readouterr().out
    assert main(["status", str(measured.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"][0]["name"] == "text/text"
