"""Ranks that start fast."""

from __future__ import annotations

from support.fixtures import ranks

__all__ = ["ranks"]
