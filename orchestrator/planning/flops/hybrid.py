"""Model FLOPs of a hybrid of state space layers, attention and MLPs."""

from __future__ import annotations

from orchestrator.models.blocks.state_space import matrices as state_space
from orchestrator.planning.flops.layers import attention_products, scores_width
from orchestrator.spec.hybrid import ATTENTION, STATE_SPACE, layer_pattern
from orchestrator.spec.model import ModelSpec

HYBRID_FORMULA = (
    "T * (3*M*(2*h*p + 7*w*n + 2*w*h) + A*(6*(h*(q+2*k) + q*h) + 12*q*s) + 6*F*m*h*f + 6*V*h); T tokens, "
    "M, A and F layers of state space, attention and MLP, h hidden, w width of a state space layer, n its state, "
    "p = 2*w + 2*groups*n + heads, q query width, k key width, s sequence, m MLP matrices (2, gated 3), f ffn width, "
    "V padded vocabulary"
)
"""As `flops.FORMULA`. Megatron-LM counts the scan as 7*w*n as well."""


def hybrid_flops(model: ModelSpec, tokens: int, padded_vocab: int, causal: bool = False) -> float:
    """Floating-point operations of forward and backward over `tokens` tokens. `causal`: half of attention's scores."""
    h, products = model.hidden_size, sum(each.inputs * each.outputs for each in state_space.matrices(model))
    attention = 6 * attention_products(model) + (6 if causal else 12) * scores_width(model) * model.seq_length
    mlp = 6 * (3 if model.is_gated else 2) * h * model.ffn_size
    each = {STATE_SPACE: 6 * products + 3 * state_space.scan_flops(model), ATTENTION: attention}
    layers = sum(each.get(kind, mlp) for kind in layer_pattern(model))
    return float(tokens * (layers + 6 * padded_vocab * h))
