"""Choosing the next token. The distributions are compared with those of transformers in test_transformers.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orchestrator.inference.generation.sampling import Choice
from orchestrator.spec.generation import Generation, options_of

LOGITS = torch.tensor([0.0, 2.0, 1.0, -3.0])
END = 3


def sets(steps: int, rows: int = 1000, logits: torch.Tensor = LOGITS, **options: Any) -> list[set[int]]:
    """Which tokens are drawn in each step."""
    each = [options_of({**options, "seed": seed, "max_new_tokens": steps}) for seed in range(rows)]
    choice = Choice(each, [[0]] * rows, len(logits), [END], torch.device("cpu"))
    found = []
    for _ in range(steps):
        tokens, _ = choice(logits.expand(rows, -1))
        choice.note(tokens)
        found.append(set(tokens.tolist()))
    return found


def test_greedy_takes_the_largest() -> None:
    assert sets(3, temperature=0.0) == [{1}] * 3


@pytest.mark.parametrize(
    ("top_k", "expected"), [(1, {1}), (2, {1, 2}), (3, {0, 1, 2}), (0, {0, 1, 2, 3}), (9, {0, 1, 2, 3})]
)
def test_top_k_keeps_the_k_likeliest(top_k: int, expected: set[int]) -> None:
    assert sets(1, temperature=2.0, top_k=top_k) == [expected]


def test_ties_are_cut_to_k() -> None:
    assert len(sets(1, logits=torch.zeros(6), top_k=2)[0]) == 2


def test_top_p_decays_to_its_bound() -> None:
    """Probabilities are 0.66, 0.24, 0.09 and 0.004: of 0.95 three are left, of 0.76 two, of 0.61 and below one."""
    assert sets(4, top_p=0.95, top_p_decay=0.8) == [{0, 1, 2}, {1, 2}, {1}, {1}]
    assert sets(4, top_p=0.95, top_p_decay=0.8, top_p_bound=0.7) == [{0, 1, 2}, {1, 2}, {1, 2}, {1, 2}]


def test_the_end_is_withheld_for_the_least_number_of_tokens() -> None:
    logits = torch.tensor([0.0, -50.0, -50.0, 4.0])
    assert sets(3, logits=logits, min_new_tokens=2) == [{0}, {0}, {0, 3}]


def test_a_row_has_its_own_options_and_seed_in_any_batch() -> None:
    mixed = [
        Generation(seed=3),
        Generation(seed=4, top_k=2, repetition_penalty=2.0),
        Generation(temperature=0.0),
        Generation(seed=3, max_new_tokens=7, log_probabilities=True),
    ]

    def tokens(options: list[Generation]) -> list[list[int]]:
        choice = Choice(options, [[1]] * len(options), len(LOGITS), [END], torch.device("cpu"))
        steps = []
        for _ in range(7):
            chosen, _ = choice(LOGITS.expand(len(options), -1))
            choice.note(chosen)
            steps.append(chosen.tolist())
        return [list(row) for row in zip(*steps, strict=True)]

    assert tokens(mixed) == [tokens([options])[0] for options in mixed]
    assert tokens(mixed)[0] == tokens(mixed)[3]
