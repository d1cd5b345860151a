"""What commands about models refuse before they start a program that imports torch."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.audit import watched
from support.training import make_run, tiny_job

from orchestrator.cli.main import main
from orchestrator.run_directory.checkpoints.commit_markers import write_commit


@pytest.fixture
def run_path(tmp_path: Path) -> str:
    """Of a run with a checkpoint."""
    run = make_run(tmp_path, tiny_job("job", data={"random_tokens": True, "tokenizer": {"type": "byte_level"}}))
    run.checkpoint(7).mkdir(parents=True)
    write_commit(run.checkpoint(7), iteration=7, consumed_samples=1, files={})
    return str(run.path)


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield str(listening.getsockname()[1])


@pytest.fixture(autouse=True)
def nothing_starts() -> Iterator[None]:
    def started(event: str, arguments: tuple[Any, ...]) -> None:
        raise AssertionError(arguments)

    with watched(("subprocess.Popen", "os.exec", "os.posix_spawn"), started):
        yield


def test_a_network_that_cannot_be_split_so(run_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"generate": ["--prompt", "x"], "serve": ["--port", "0"], "evaluate": ["--text", __file__]}
    for command, options in words.items():
        assert main([command, run_path, *options, "--tensor-model-parallel-size", "3"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: tensor_model_parallel_size 3 does not fit this model: ")
        assert said.endswith("; sizes that fit: 1, 2, 4\n")


def test_a_text_without_words(run_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff")
    assert main(["evaluate", run_path, "--text", str(empty)]) == 2
    assert capsys.readouterr().err == f"error: {empty} is empty\n"
    assert main(["evaluate", run_path, "--wikitext", str(binary)]) == 2
    assert f"{binary} is not text in UTF-8" in capsys.readouterr().err


def test_a_task_that_the_harness_does_not_have(
    run_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word of its files may name a task, and so may a file here, or one of the user's folders: it finds that out."""
    pytest.importorskip("lm_eval")
    monkeypatch.chdir(tmp_path)
    for name, meant in (
        ("truthfulqa_mc12", " (did you mean truthfulqa_mc1 or truthfulqa_mc2?)"),
        ("mmlu_anatomyy", " (did you mean mmlu_anatomy?)"),  # which its file has in quotes
        ("nothing_like_this", ""),
    ):
        assert main(["evaluate", run_path, "--lm-eval", name]) == 2
        said = f"error: --lm-eval {name}: there is no such task{meant}, and no such YAML file; "
        assert capsys.readouterr().err == said + "your own tasks are looked up in --include-path DIR\n"
    Path("a_file").touch()
    for words in (["hellaswag"], ["a_file"], ["hellaswagg", "--include-path", "."]):
        with pytest.raises(AssertionError):
            main(["evaluate", run_path, "--lm-eval", *words])


def test_a_port_that_is_taken(run_path: str, taken_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["serve", run_path], ["dashboard", "--runs-dir", str(Path(run_path).parents[1])]):
        assert main([*words, "--port", taken_port]) == 2
        said = f"error: cannot listen on 127.0.0.1, port {taken_port}: Address already in use; choose another one with"
        assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "job.yaml", "--html"],
        ["plan", "job.yaml", "--svg"],
        ["bench", "job.yaml", "--trace"],
        ["bench", "job.yaml", "--output"],
        ["calibrate", "--output"],
        ["cluster", "init", "--yes", "--output"],
        ["evaluate", "run", "--text", "x", "--output"],
        ["checkpoint", "reshape", "run", "--output"],
        ["checkpoint", "import", "folder", "--output"],
        ["data", "tokenize", "x", "--output-prefix"],
    ],
)
def test_what_cannot_be_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "-"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {arguments[-1]} - would be standard output, ")
