"""Gradients of a loss per token, divided by the tokens of a global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

RunRanks = Callable[[str, int], list[Any]]


def test_gradients_are_divided_by_the_tokens_without_asking_the_host(run_ranks: RunRanks) -> None:
    for found in run_ranks("divided", 4):
        assert found == [[[2.0], 0], [[12.0], 0]]
