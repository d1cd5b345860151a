"""Another time than it is."""

from __future__ import annotations

import time
from typing import Any

import pytest


def stop_at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """It is this time (since the epoch) for everybody, and stays so."""
    monkeypatch.setattr(time, "time", lambda: seconds)


def own_clock(monkeypatch: pytest.MonkeyPatch, module: str, clock: Any) -> None:
    """A module goes by this clock in place of Python's module `time`."""
    monkeypatch.setattr(f"{module}.time", clock)
