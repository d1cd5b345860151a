"""The layers of a hybrid: which of them are state space layers (Mamba-2), attentions and MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from orchestrator.spec.model import ModelSpec

STATE_SPACE, ATTENTION, MLP = "M", "*", "-"
KINDS: Final = {STATE_SPACE: "state space", ATTENTION: "attention", MLP: "MLP"}
"""megatron-core's letters."""


def layer_pattern(model: ModelSpec) -> str:
    """A letter for each layer: as written, or by the ratios as megatron-core spaces them. Attentions lie evenly between
    state space layers; of these, then, every so many is an MLP, the last ones of each stretch.
    """
    if model.hybrid_override_pattern is not None:
        return model.hybrid_override_pattern
    pattern = [STATE_SPACE] * model.num_layers
    attentions = round(model.num_layers * model.hybrid_attention_ratio)
    _space(pattern, ATTENTION, (model.num_layers - attentions) / (attentions + 1))
    mlps = round(model.num_layers * model.hybrid_mlp_ratio)
    if mlps > 0:
        _space(pattern, MLP, (model.num_layers - attentions - mlps) / mlps)
    return "".join(pattern)


def _space(pattern: list[str], letter: str, gap: float) -> None:
    """Turn state space layers into others, one after each `gap` of them."""
    left = gap
    for index, kind in enumerate(pattern):
        if kind != STATE_SPACE:
            continue
        if left < 0.5:
            pattern[index] = letter
            left += gap
        else:
            left -= 1
