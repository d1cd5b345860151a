"""What blocks say of the names and shapes of their weights is what checkpoints of built networks hold, and what an
export takes to be beside them is there.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.matrix import FAMILIES, matrix_job

from orchestrator.conversion.hugging_face.adapters import adapter_of
from orchestrator.conversion.shapes import weights_of
from orchestrator.models.blocks.weights import Rule
from orchestrator.planning.vocabulary import vocabulary

NOT_SAID = {
    **{"post-ln": "its norms", "modernbert": "the first layer, which has a norm less", "race": "its head"},
    **dict.fromkeys(("hybrid", "hybrid-experts"), "its layers are built where mamba-ssm is"),
}
"""Families that `weights_of` is not for, or that are not built here; nor is it for encoders of images."""


@pytest.fixture(scope="module")
def stored(run_ranks: Any) -> dict[str, dict[str, list[int]]]:
    [found] = run_ranks("stored", 1)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NOT_SAID])
def test_a_checkpoint_holds_what_is_said(stored: dict[str, dict[str, list[int]]], family: str) -> None:
    job = matrix_job(family, "fp32", "nowhere", {})
    shapes = {key: tuple(shape) for key, shape in stored[family].items() if not key.startswith("vision.")}
    expected = weights_of(job.model, vocabulary(job).padded_size)
    for key, shape in [*expected.items()]:
        adapter = adapter_of(Rule(key, ()), job.model)
        expected |= {} if adapter is None else {name: (*shape[:-2], *of) for name, of in adapter.shapes.items()}
    assert shapes == expected
