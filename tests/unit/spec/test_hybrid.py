"""Which layers of a hybrid are of which kind."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.models.blocks.state_space.parameters import state_space_heads, state_space_width
from orchestrator.models.layer_pattern import layer_pattern

MAMBA = ("model.architecture=mamba", "model.mamba_num_groups=2")


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ([], "MMMM"),
        (["model.hybrid_attention_ratio=0.25"], "MM*M"),
        (["model.hybrid_mlp_ratio=0.5"], "M-M-"),
        (["model.hybrid_attention_ratio=1"], "****"),
        (["model.hybrid_override_pattern=M*-M"], "M*-M"),
    ],
)
def test_pattern(small: Any, changes: list[str], pattern: str) -> None:
    assert layer_pattern(small.job(*MAMBA, *changes).model) == pattern


def test_widths(small: Any) -> None:
    model = small.job(*MAMBA).model
    assert (state_space_width(model), state_space_heads(model)) == (256, 4)
    model = small.job(*MAMBA, "model.mamba_num_heads=6").model
    assert (state_space_width(model), state_space_heads(model)) == (384, 6)
