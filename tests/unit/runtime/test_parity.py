"""Variants of the decoder beside transformers' models with the same weights, and with a key/value cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.faults import Ranks

pytestmark = pytest.mark.slow("builds each family twice and takes it through some passes")

TESTS = Path(__file__).parents[2]
FAMILIES = (
    *("gpt2", "llama2", "llama3.1", "linear", "yarn", "mistral", "qwen2.5", "qwen2.5 with windows", "qwen3"),
    *("gemma", "nemotron", "yarn of a part", "yarn of some layers", "mpt"),
)
Differences = dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def differences(ranks: Ranks) -> Differences:
    found: Differences = json.loads(ranks.program(TESTS, "unit.runtime.parity_program", seconds=250))
    assert found.keys() == {*FAMILIES, "capped", "capacity", "rope scaling"}
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(differences: Differences, name: str) -> None:
    """Differences are in standard deviations of the logits."""
    assert differences[name]["logits"] < 2e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_the_cache_changes_no_logits(differences: Differences, name: str) -> None:
    assert differences[name]["cache"] < 2e-5


def test_soft_capping(differences: Differences) -> None:
    """Attention as Gemma 2's; the logits below 20 of a network with large weights, with the cache and without."""
    found = differences["capped"]
    assert found.pop("attention") < 1e-5
    assert len(found) == 3
    assert max(found.values()) < 1e-3


def test_generation_drops_no_tokens(differences: Differences) -> None:
    """Of a mixture of experts with a capacity: each row of a batch as alone, at any length of the others."""
    assert differences["capacity"]["cache"] < 2e-5


def test_rotary_scaling(differences: Differences) -> None:
    assert differences["rope scaling"]["frequencies"] < 1e-5
    assert differences["rope scaling"]["factor"] < 1e-12
