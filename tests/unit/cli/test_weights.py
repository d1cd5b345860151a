"""What is said when a person names weights that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.models.weights import tell_new_meaning, weights_named
from orchestrator.errors import RunNotFound, UserError
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit
from orchestrator.spec.loading import load_text

JOB = "{name: %s, model: {preset: gpt2}, batch: {global_batch_size: 8}, optimizer: {lr: 1e-4}, "
JOB += "schedule: {train_iters: 10}, data: {random_tokens: true}}"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", "make a run of it with `orchestrator checkpoint import {}`"),
        ("latest_checkpointed_iteration.txt", "make a run of it with `orchestrator checkpoint import {}`"),
        ("notes.txt", "it has no resolved spec and no commit.json that can be read"),
    ],
)
def test_a_folder_that_is_there_is_not_called_a_missing_run(tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(UserError) as caught:
        weights_named(str(tmp_path), None, tmp_path / "runs")
    assert str(caught.value) == f"{tmp_path} is neither a run nor a checkpoint: {said.format(tmp_path)}"
    assert not isinstance(caught.value, RunNotFound)


def test_a_name_that_is_nowhere_is_a_missing_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        weights_named("nothing", None, tmp_path)


def test_a_hugging_face_folder_is_not_called_unfinished(orchestrator: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    said = orchestrator("checkpoint", "verify", str(tmp_path))
    assert said.code == 2
    assert "is a Hugging Face model" in said.err


def test_an_import_of_nothing_says_so(orchestrator: Any, tmp_path: Path) -> None:
    said = orchestrator("checkpoint", "import", str(tmp_path / "none"), "--job", "job.yaml")
    assert (said.code, said.err) == (2, f"error: {tmp_path / 'none'} does not exist\n")


def test_an_import_of_a_model_that_saw_other_pixels_is_refused(orchestrator: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava", "image_token_index": 7}')
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 9, "content": "<image>"}]}')
    (tmp_path / "preprocessor_config.json").write_text('{"resample": 2}')
    said = orchestrator("checkpoint", "import", str(tmp_path))
    assert said.code == 2
    assert "preprocessor_config.json: resample is 2, and here it is 3. The model would get other" in said.err
    (tmp_path / "preprocessor_config.json").unlink()
    said = orchestrator("checkpoint", "import", str(tmp_path), "--mtp")  # which it has no layers for: nothing is read
    assert said.code == 2
    assert "warning: config.json says image_token_index: 7, and <image> has the id 9" in said.err


def test_a_checkpoint_that_names_files_outside_its_folder_is_refused(orchestrator: Any, tmp_path: Path) -> None:
    """What it carries is written under the same names."""
    planted, work = tmp_path / "planted" / "checkpoint", tmp_path / "a" / "work"
    (planted / "tokenizer").mkdir(parents=True)
    work.mkdir(parents=True)
    name = "tokenizer/../../../Makefile"
    (planted / name).write_text("all:")
    write_commit(planted, iteration=1, consumed_samples=8, files={name: file_record(planted / name)})
    said = orchestrator("checkpoint", "reshape", str(planted), "--tp", "2", "-o", str(work / "out"))
    assert said.code == 2
    assert said.err == (
        f'error: {planted}/commit.json is damaged: it names "{name}", which is not a file in this folder\n'
    )
    assert list((tmp_path / "a").rglob("*")) == [work]


def test_a_name_that_means_another_run_now_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [create_run(load_text(JOB % name, name).job, JOB % name, tmp_path) for name in ("a", "b", "a")]
    for run in runs[:2]:
        tell_new_meaning(run, tmp_path / "elsewhere")
    assert capsys.readouterr().out == ""
    tell_new_meaning(runs[2], tmp_path)
    assert capsys.readouterr().out == f"a names this run from now on; the one before is {runs[0].run_id}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "out"), "there is no run nowhere"),
        (("--output", "out"), "there is no run nowhere"),
        (("out",), "there is no run nowhere"),
        ((), "-o DIR"),
        (("out", "-o", "other"), "-o DIR"),
        (("-o", "-"), "standard output"),
    ],
)
def test_the_folder_of_an_export(orchestrator: Any, words: tuple[str, ...], said: str) -> None:
    """With -o as elsewhere, or behind the run."""
    refused = orchestrator("checkpoint", "export", "nowhere", *words, "--to", "hf")
    assert (refused.code, said in refused.err) == (2, True)
