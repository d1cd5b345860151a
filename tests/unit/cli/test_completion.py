"""Completion in the shells: bash's own, typed into a terminal, and what zsh and fish are answered."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cli.main import COMMANDS, main


@contextmanager
def terminal(home: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """An interactive bash in its home, whose .bashrc it has read; the terminal that is typed into."""
    ours, its = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "-i"],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=home,
        env={**environment, "COLUMNS": "200"},
        start_new_session=True,
    )
    os.close(its)
    try:
        yield ours
    finally:
        bash.kill()
        bash.wait()
        os.close(ours)


def typed(screen: int, keys: str, shown: str, seconds: float = 20.0) -> str:
    """What the terminal shows after the keys, once `shown` is part of it."""
    os.write(screen, keys.encode())
    text, deadline = "", time.monotonic() + seconds
    while shown not in text:
        assert time.monotonic() < deadline, text
        if select.select([screen], [], [], 0.2)[0]:
            text += os.read(screen, 4096).decode(errors="replace")
    return text


def test_bash_completes_commands_groups_and_flags_once_it_is_installed(tmp_path: Path) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    installing = ["bash", "-c", "orchestrator --install-completion; exit $?"]
    subprocess.run(installing, env=environment, check=True, timeout=60, capture_output=True)
    assert ".bash_completions/orchestrator.sh" in (tmp_path / ".bashrc").read_text()
    (tmp_path / "a job.yaml").touch()
    with terminal(tmp_path, environment) as screen:
        typed(screen, "orchestrator vali\t", "validate ")
        typed(screen, "a\t", "a\\ job.yaml ")  # files, where a file is due
        typed(screen, "--set optimizer.lr=1 --stri\t", "--strict ")
        typed(screen, "\x15orchestrator swe\tret\t", "sweep retry ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "pwsh"])
@pytest.mark.parametrize("form", ["--show-completion {}", "--show-completion={}"])
def test_a_shell_that_is_named_gets_its_own_script(form: str, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(form.format(shell).split()) == 0
    mark = f"complete_{shell}" if shell in ("bash", "zsh", "fish") else "Register-ArgumentCompleter"
    assert mark in capsys.readouterr().out


def test_completion_is_installed_for_the_shell_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "fish"]) == 0
    assert (tmp_path / ".config/fish/completions/orchestrator.fish").is_file()
    assert not (tmp_path / ".bashrc").exists()


@pytest.mark.parametrize("flag", ["--show-completion", "--install-completion"])
@pytest.mark.parametrize("word", ["tcsh", "run", "ZSH"])
def test_a_word_that_names_no_shell_is_refused(
    flag: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main([flag, word]) == 2
    said = capsys.readouterr()
    assert (said.out, word in said.err, "fish" in said.err) == ("", True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shell", "words", "answers"),
    [
        ("zsh", "orchestrator va", ['"validate"']),
        ("zsh", "orchestrator validate --st", ['"--strict"']),
        ("fish", "orchestrator ", [entry.name for entry in COMMANDS]),
        ("fish", "orchestrator checkpoint ex", ["export"]),
        ("fish", "orchestrator run --det", ["--detach"]),
        ("bash", "orchestrator cancel --no", ["--now", "--no-wait"]),
    ],
)
def test_shells_are_answered(
    shell: str, words: str, answers: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ORCHESTRATOR_COMPLETE", f"complete_{shell}")
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    else:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(answer in shown for answer in answers)
    assert shell == "zsh" or [line.split("\t")[0] for line in shown.splitlines()] == answers
