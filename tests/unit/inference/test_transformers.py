"""Searches and draws are those of transformers, with the same weights and prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks

pytestmark = pytest.mark.slow("transformers' models write 60 texts each with up to 20 beams")

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    said = ranks.program(HERE, "transformers_program", tmp_path_factory.mktemp("models"), seconds=300)
    answer: dict[str, dict[str, Any]] = json.loads(said.splitlines()[-1])
    return answer


@pytest.mark.parametrize("model", ["gpt2", "llama", "mistral", "deepseek", "longrope", "t5"])
def test_greedy_and_beam_search_write_the_same_tokens(found: dict[str, dict[str, Any]], model: str) -> None:
    """Learned, rotary, scaled and relative positions, grouped queries, a sliding window, latents, an encoder; prompts
    of one to twenty tokens in one batch."""
    for search in ("greedy", "beams 4", "beams 20"):
        entry = found["searches"][f"{model}, {search}"]
        assert (entry["prompts"], entry["differ"]) == (60, 0), (search, entry)
        assert entry["kinds"] > 20, "texts that differ from each other"
        assert entry["ended"] > 0, "texts that end before their greatest length"


@pytest.mark.parametrize("search", ["short beams", "long beams", "no repetition"])
def test_penalties_and_least_lengths_do_the_same(found: dict[str, dict[str, Any]], search: str) -> None:
    entry = found["searches"][f"llama, {search}"]
    assert entry["differ"] == 0, entry
    assert entry["kinds"] > 20


def test_draws_follow_the_same_distributions(found: dict[str, dict[str, Any]]) -> None:
    """A chi-square test of 20,000 draws each; the seeds are fixed, so it cannot fail by chance from day to day."""
    assert len(found["draws"]) == 5
    assert all(p > 0.01 for p in found["draws"].values()), found["draws"]
