"""Standard streams that are a terminal."""

from __future__ import annotations

import sys
from typing import Literal

import pytest


def on_terminal(monkeypatch: pytest.MonkeyPatch, stream: Literal["stdin", "stdout"]) -> None:
    """It is one, as far as a command asks."""
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
