"""Layers of a hybrid lie where megatron-core puts them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from megatron.core.ssm import mamba_hybrid_layer_allocation
from support.training import tiny_job

from orchestrator.models.layer_pattern import layer_pattern

# The first is its name in megatron-core 0.19, the second in 0.16.
PATTERN_OF_RATIOS = next(
    getattr(mamba_hybrid_layer_allocation, name)
    for name in ("pattern_from_ratios", "_allocate_auto")
    if hasattr(mamba_hybrid_layer_allocation, name)
)
MODEL = tiny_job("job").model


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
def test_pattern_is_megatron_cores(layers: int, attention: float, mlp: float) -> None:
    """Where the ratios leave state space layers beside, which megatron-core asks for."""
    ratios = {"hybrid_attention_ratio": attention, "hybrid_mlp_ratio": mlp * (1 - attention)}
    ours = layer_pattern(MODEL.model_copy(update={"architecture": "mamba", "num_layers": layers, **ratios}))
    assert ours == "".join(PATTERN_OF_RATIOS(layers, *ratios.values()))
