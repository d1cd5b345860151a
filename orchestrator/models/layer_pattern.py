"""The letters of a hybrid's layers, as megatron-core has them."""

from __future__ import annotations

from typing import Any, Final

STATE_SPACE_LETTER: Final = "M"
ATTENTION_LETTER: Final = "*"
MLP_LETTER: Final = "-"
EXPERT_LETTER: Final = "E"


def layer_pattern(model: Any) -> str:
    """The letters of a hybrid's layers: as written, or by the ratios as megatron-core spaces them. Attentions lie
    evenly between state space layers; of these, then, every so many is an MLP, the last ones of each stretch.
    """
    if model.hybrid_override_pattern is not None:
        return str(model.hybrid_override_pattern)
    pattern = [STATE_SPACE_LETTER] * model.num_layers
    attentions = round(model.num_layers * model.hybrid_attention_ratio)
    _space(pattern, ATTENTION_LETTER, (model.num_layers - attentions) / (attentions + 1))
    mlps = round(model.num_layers * model.hybrid_mlp_ratio)
    if mlps > 0:
        _space(pattern, MLP_LETTER, (model.num_layers - attentions - mlps) / mlps)
    return "".join(pattern)


def _space(pattern: list[str], letter: str, gap: float) -> None:
    """Turn state space layers into others, one after each `gap` of them."""
    left = gap
    for index, kind in enumerate(pattern):
        if kind != STATE_SPACE_LETTER:
            continue
        if left < 0.5:
            pattern[index] = letter
            left += gap
        else:
            left -= 1
