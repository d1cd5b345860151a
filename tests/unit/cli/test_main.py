"""The front of the command line: its table of commands, its error boundary, and how quick it is."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.core import TyperGroup, TyperOption

from orchestrator.cli import main as front
from orchestrator.cli.main import COMMANDS, build_app, main, value_name
from orchestrator.errors import CheckpointError, Location, Problem, SpecError, UserError
from orchestrator.version import __version__

HEAVY = {"torch", "megatron", "mlflow", "transformers", "tokenizers", "pandas", "numpy", "submitit", "pyarrow"}


def test_the_root_lists_every_command_and_imports_none(orchestrator: Any) -> None:
    shown = orchestrator("--help")
    assert shown.code == 0
    for entry in COMMANDS:
        assert entry.name in shown.out
    program = "import sys, orchestrator.cli.main as m; m.main(['--help']); print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for entry in COMMANDS:
        assert f"'{entry.module}'" not in modules


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: str(entry.name))
def test_every_command_has_help_with_an_example(entry: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(entry.module)
    names = [command.name for command in module.app.registered_commands] if hasattr(module, "app") else [None]
    for name in names:
        words = [entry.name, *([name] if name else []), "--help"]
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "Example" in out, words
        assert f"orchestrator {entry.name}" in out.split("Example")[1], words
        assert "--json" in out, words
        assert not re.search(r"<(bool|int|float|str|list|path|dir|file)\b", out), words


def _options(entry: Any) -> Iterator[Any]:
    app = typer.main.get_command(build_app(entry.name))
    assert isinstance(app, TyperGroup)
    unseen = [app.commands[entry.name]]
    while unseen:
        command = unseen.pop()
        unseen += getattr(command, "commands", {}).values()
        yield from (each for each in command.params if isinstance(each, TyperOption))


def test_options_say_what_they_take() -> None:
    taken: dict[str, set[str | None]] = {}
    for option in (each for entry in COMMANDS for each in _options(entry)):
        taken.setdefault(option.opts[0], set()).add(value_name(option))
    expected = {"--cluster": "NAME|FILE", "--stop": "TEXT", "--top-k": "N", "--temperature": "NUMBER", "--host": "HOST"}
    expected |= {"--dtype": "bf16|fp16|fp32", "--as": "orchestrator|megatron-lm|kubernetes", "--set": "KEY=VALUE"}
    assert {name: taken[name] for name in expected} == {name: {value} for name, value in expected.items()}
    assert taken["--json"] == {None}, "a flag takes no value"
    python = re.compile(r"[<>]|^(int|float|str|list|path)\b", re.IGNORECASE)
    types = {value for values in taken.values() for value in values if value is not None and python.search(value)}
    assert types == {"PATH"}


def test_version(orchestrator: Any) -> None:
    assert orchestrator("--version").out == f"orchestrator {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [(), ("no-such-command",), ("validate",), ("validate", "--no-such-option"), ("--no-such-option",)]
)
def test_usage_errors_are_exit_2(orchestrator: Any, arguments: tuple[str, ...]) -> None:
    assert orchestrator(*arguments).code == 2


def test_a_mistyped_command_is_answered_with_the_right_one(orchestrator: Any) -> None:
    assert "'validate'" in orchestrator("valdate").err


def test_a_refused_write_is_an_input_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(arguments: object, as_json: bool) -> int:
        raise OSError(30, "Read-only file system", str(tmp_path / "sweep.yaml"))

    monkeypatch.setattr(front, "_run", refuse)
    assert main(["sweep", "run"]) == 2
    assert (
        f"error: nothing can be written in {tmp_path}: Read-only file system; name another" in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", [("delete", "x", "--keep", "worst"), ("compare", "x", "--x", "miles")])
def test_a_wrong_choice_is_told_in_our_words(orchestrator: Any, words: tuple[str, ...]) -> None:
    plain, said = orchestrator(*words), json.loads(orchestrator(*words, "--json").out)
    assert (plain.code, said["exit_code"], said["error"]) == (2, 2, "UsageError")
    assert "Value error" not in plain.err + said["message"]
    assert words[-1] in said["message"]


def test_usage_errors_in_json(orchestrator: Any) -> None:
    finished = orchestrator("validate", "--json")
    assert finished.code == finished.json["exit_code"] == 2
    assert finished.json["error"] == "UsageError"
    assert "JOB.yaml" in finished.json["message"]


def _raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(as_json: bool = typer.Option(False, "--json")) -> None:
        raise error

    module = SimpleNamespace(command=command)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("the input", code="some_code"), 2),
        (CheckpointError("the job"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Exit(3), 3),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_errors_become_exit_codes(
    error: BaseException,
    code: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _raising(error, monkeypatch)
    assert main(["run", *(["--json"] if as_json else [])]) == code
    shown = capsys.readouterr()
    if isinstance(error, UserError | CheckpointError):
        if as_json:
            record = json.loads(shown.out)
            said = {"error": type(error).__name__, "message": str(error), "exit_code": code}
            assert record == (said if error.code is None else {**said, "code": error.code})
        else:
            assert shown.err == f"error: {error}\n"
            assert shown.out == ""


def test_a_wrong_spec_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place = Location("job.yaml", 3, 5, "    tp: 3")
    _raising(SpecError([Problem("is wrong", ("a.b", "c"), "do this", place)]), monkeypatch)
    assert main(["run", "--json"]) == 2
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert problem == {
        "message": "is wrong",
        "path": "a.b",
        "paths": ["a.b", "c"],
        "hint": "do this",
        "source": "job.yaml",
        "line": 3,
        "column": 5,
        "excerpt": "    tp: 3",
    }


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(ZeroDivisionError(), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(["run"])


def test_a_reader_that_goes_away(job_file: Path) -> None:
    command = f"{sys.executable} -m orchestrator schema | true"
    finished = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert finished.returncode in (0, 1)
    assert finished.stderr == ""


def test_a_terminal_that_does_not_know_every_character(job_file: Path) -> None:
    overrides = ["--set", "data.random_tokens=false", "--set", "data.blend=[日]"]
    finished = subprocess.run(
        [sys.executable, "-m", "orchestrator", "validate", str(job_file), *overrides],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "\\u65e5" in finished.stdout


def test_only_the_typed_command_is_real() -> None:
    app = build_app("schema")
    real = [command.name for command in app.registered_commands if command.callback.__module__ != front.__name__]
    assert real == ["schema"]


def test_validate_is_light_and_quick(orchestrator: Any, job_file: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orchestrator", "validate", str(job_file)],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in finished.stderr.splitlines()}
    assert "orchestrator" in imported
    assert not imported & HEAVY
    assert "rich" not in imported


def test_only_models_that_commands_make_are_without_plugins() -> None:
    """What looks for plugins is not even imported; afterwards it is there as ever."""
    program = """
import os, sys
from pydantic import BaseModel
from orchestrator.imports import without_pydantic_plugins
with without_pydantic_plugins():
    class Ours(BaseModel): field: int
    print("importlib.metadata" in sys.modules)
class Theirs(BaseModel): field: int
print("importlib.metadata" in sys.modules)
from pydantic.plugin import _loader
with without_pydantic_plugins():
    print(sys.modules[_loader.__name__] is _loader)
print(sys.modules[_loader.__name__] is _loader)
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == ["False", "True", "False", "True"]


def test_threads_that_make_models_at_once_leave_plugins_to_others() -> None:
    """Neither takes the other's stand-in for what was there before."""
    program = """
import sys, threading
from orchestrator.imports import without_pydantic_plugins
inside, begun = threading.Event(), threading.Event()
def first():
    with without_pydantic_plugins():
        inside.set()
        begun.wait()
def second():
    begun.set()
    with without_pydantic_plugins():
        one.join()
one, two = threading.Thread(target=first), threading.Thread(target=second)
one.start(); inside.wait(); two.start(); two.join()
from pydantic.plugin import _loader
print(hasattr(_loader, "__file__"))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert finished.stdout == "True\n"
