"""Model FLOPs as Megatron-LM counts them (num_floating_point_operations of its training/training.py): of attention what
a causal mask leaves, half of it.
"""

from __future__ import annotations

from orchestrator.planning.flops.layers import attention_products, scores_width
from orchestrator.spec.model import ModelSpec

CAUSAL_FORMULA = (
    "T * (6*L*(h*(q+2*k) + q*h + q*s + m*h*f) + 6*V*h); as Megatron-LM counts, half of attention's scores; T tokens, "
    "L layers, h hidden, q query width, k key width, m MLP matrices (2, gated 3), f ffn width, s sequence, V padded "
    "vocabulary; in a layer with experts m*f is m*(chosen experts * their width + shared width)"
)
"""As `flops.FORMULA`. Neither windows nor routers nor dropped tokens are counted, nor what is bidirectional in full."""


def causal_layers_flops(model: ModelSpec) -> float:
    """Floating-point operations of forward and backward of all layers of a GPT or BERT over one token."""
    h = model.hidden_size
    matrices = 3 if model.is_gated else 2
    routed = sum(model.moe_layers)
    attention = attention_products(model) + scores_width(model) * model.seq_length
    chosen = model.moe_router_topk * model.moe_ffn_size + model.shared_expert_size
    widths = (model.num_layers - routed) * model.ffn_size + routed * chosen
    return 6 * (model.num_layers * attention + matrices * h * widths)
