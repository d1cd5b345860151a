"""What torch says of GPUs, where there are none, or others."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def show_gpus(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Have functions and classes of `torch.cuda`, by their names, be these, or return these; `is_available` follows
    from `device_count`.
    """
    if "device_count" in facts:
        facts["is_available"] = facts["device_count"] > 0
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, fact if callable(fact) else _returning(fact))


def _returning(fact: Any) -> Any:
    return lambda *arguments, **named: fact
