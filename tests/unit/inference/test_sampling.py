"""Choosing the next token."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from orchestrator.inference.sampling import sample

LOGITS = torch.tensor([0.0, 2.0, 1.0, -3.0])


def draw(count: int, temperature: float, top_k: int, seed: int = 1, logits: torch.Tensor = LOGITS) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [sample(logits, temperature, top_k, generator) for _ in range(count)]


def test_greedy_takes_the_largest() -> None:
    assert draw(5, temperature=0.0, top_k=0) == [1] * 5


@pytest.mark.parametrize(
    ("top_k", "expected"), [(1, {1}), (2, {1, 2}), (3, {0, 1, 2}), (0, {0, 1, 2, 3}), (9, {0, 1, 2, 3})]
)
def test_top_k_keeps_the_k_likeliest(top_k: int, expected: set[int]) -> None:
    assert set(draw(2000, temperature=2.0, top_k=top_k)) == expected


def test_frequencies_follow_the_softmax() -> None:
    counts = Counter(draw(20000, temperature=0.5, top_k=0))
    expected = (LOGITS / 0.5).softmax(0)
    for token in range(3):
        assert counts[token] / 20000 == pytest.approx(float(expected[token]), abs=0.01)


def test_the_seed_decides() -> None:
    assert draw(50, 1.0, 0, seed=3) == draw(50, 1.0, 0, seed=3)
    assert draw(50, 1.0, 0, seed=3) != draw(50, 1.0, 0, seed=4)


def test_ties_are_cut_to_k() -> None:
    assert len(set(draw(500, 1.0, 2, logits=torch.zeros(6)))) == 2
