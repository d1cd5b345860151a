"""The list of model families, and the tables that rooms have of them."""

from __future__ import annotations

from typing import get_args

import pytest
from support.training import tiny_job

from orchestrator.models.registry import (
    BERT,
    FAMILIES,
    GPT,
    MAMBA,
    T5,
    Architecture,
    FamilyTable,
    ModelFamily,
    Positions,
)


def test_the_registry_has_each_architecture_of_the_spec() -> None:
    assert tuple(FAMILIES) == get_args(Architecture)
    assert [family.name for family in FAMILIES.values()] == list(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_traits_are_of_known_values(family: ModelFamily) -> None:
    assert set(family.positions) <= set(get_args(Positions))


def test_a_model_leads_to_its_family() -> None:
    assert tiny_job("job").model.family is GPT
    assert tiny_job("job", model={"architecture": "bert", "position_embedding_type": "rope"}).model.family is BERT


def test_a_table_has_every_family() -> None:
    table = FamilyTable(gpt=1, bert=2, t5=3, mamba=4)
    assert [table.of(family) for family in (GPT, BERT, T5, MAMBA)] == list(table) == [1, 2, 3, 4]


@pytest.mark.parametrize("entries", [{"gpt": 1, "bert": 2, "t5": 3}, {**dict.fromkeys(FAMILIES, 1), "rnn": 1}])
def test_a_table_without_a_family_or_with_an_unknown_one_is_refused(entries: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="the families are gpt, bert, t5, mamba"):
        FamilyTable(**entries)
