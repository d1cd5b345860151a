"""What the system refuses, and what happens at one moment of the code: until the test is over."""

from __future__ import annotations

import errno
import os
import pkgutil
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


def refuse(
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    error: int | BaseException,
    when: Callable[..., bool] = lambda *arguments, **named: True,
) -> None:
    """Have a function of the system or of a library, named as in `os.fsync`, raise an error where `when` says so of
    its arguments. A number is the system's, about the path that is asked for.
    """
    assert not function.startswith("orchestrator."), "our own functions fail as what they call does"

    def refused(*arguments: Any, **named: Any) -> None:
        if when(*arguments, **named):
            raise OSError(error, os.strerror(error), *_path(arguments)) if isinstance(error, int) else error

    before(monkeypatch, function, refused)


def _path(arguments: tuple[Any, ...]) -> list[str]:
    return [str(arguments[0])] if arguments and isinstance(arguments[0], str | Path) else []


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, error: int = errno.ENOSPC) -> None:
    """Have nothing written: neither a line of a log, nor a file that appears at once."""
    for function in ("os.write", "os.fsync"):
        refuse(monkeypatch, function, error)


def before(monkeypatch: pytest.MonkeyPatch, function: str, action: Callable[..., object]) -> None:
    """Have something happen each time that a function is called, just before it does what it does. `action` is given
    the function's arguments; what it raises ends the call.
    """

    def do(real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        action(*arguments, **named)
        return real(*arguments, **named)

    _put_around(monkeypatch, function, do)


def fail_at(monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException) -> None:
    """Have what comes to this function end there."""

    def end(*arguments: Any, **named: Any) -> None:
        raise error

    before(monkeypatch, function, end)


def after(monkeypatch: pytest.MonkeyPatch, function: str, action: Callable[..., object]) -> None:
    """The same just after it, with its result in front of its arguments."""

    def do(real: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        action(found, *arguments, **named)
        return found

    _put_around(monkeypatch, function, do)


def _put_around(monkeypatch: pytest.MonkeyPatch, function: str, do: Callable[..., Any]) -> None:
    owner, _, name = function.rpartition(".")
    place = pkgutil.resolve_name(owner)
    real = getattr(place, name)

    def called(*arguments: Any, **named: Any) -> Any:
        return do(real, *arguments, **named)

    monkeypatch.setattr(place, name, called)


def let_nothing_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system say that no file may be written: root, as whom tests may run, is refused nothing."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)


def leave_room(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Path]:
    """Every disk has so many bytes left; returns the folders that are asked for, as they are."""
    asked: list[Path] = []

    def usage(folder: str | Path) -> SimpleNamespace:
        asked.append(Path(folder))
        return SimpleNamespace(free=count, total=1 << 40, used=0)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked
