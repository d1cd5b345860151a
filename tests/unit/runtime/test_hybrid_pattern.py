"""Layers of a hybrid lie where megatron-core puts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from megatron.core.ssm.mamba_hybrid_layer_allocation import _allocate_auto
from support.training import tiny_job

from orchestrator.models.layers import layer_pattern

MODEL = tiny_job("job").model


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
def test_pattern_is_megatron_cores(layers: int, attention: float, mlp: float) -> None:
    """Where the ratios leave state space layers beside, which megatron-core asks for."""
    ratios = {"hybrid_attention_ratio": attention, "hybrid_mlp_ratio": mlp * (1 - attention)}
    ours = layer_pattern(MODEL.model_copy(update={"architecture": "mamba", "num_layers": layers, **ratios}))
    assert ours == "".join(_allocate_auto(layers, *ratios.values()))
