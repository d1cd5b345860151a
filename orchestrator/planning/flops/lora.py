"""Model FLOPs of training low-rank adapters: what is frozen needs the gradient of its input only, not of its weight."""

from __future__ import annotations

from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.spec.model import ModelSpec

LORA_FORMULA = (
    "T * (L*(4*(h*(q+2*k) + q*h + m*h*f) + 6*a + 12*q*s) + 4*V*h - u); T tokens, L layers, h hidden, q query width, "
    "k key width, m MLP matrices (2, gated 3), f ffn width, a parameters of a layer's adapters, s sequence, V padded "
    "vocabulary; u gradients that nothing needs: of what lies before the first adapter, and of its input"
)
"""As `flops.FORMULA`."""


def lora_flops(model: ModelSpec, attended: float, padded_vocab: int) -> float:
    """Floating-point operations of forward and backward over a token. `attended`: the s of attention."""
    h, query = model.hidden_size, model.num_attention_heads * model.head_dim
    matrices = {
        "linear_qkv": (h, query + 2 * model.query_groups * model.head_dim),
        "linear_proj": (query, h),
        "linear_fc1": (h, model.ffn_size * (2 if model.is_gated else 1)),
        "linear_fc2": (model.ffn_size, h),
    }
    frozen = sum(inputs * outputs for inputs, outputs in matrices.values())
    layer = 4 * frozen + 6 * adapter_parameters(model, 1) + 12 * query * attended
    unneeded = 0.0 if "linear_qkv" in model.adapters.target_modules else 8 * query * attended
    for name, (inputs, outputs) in matrices.items():
        unneeded += 2 * inputs * outputs
        if name in model.adapters.target_modules:
            unneeded += 2 * inputs * model.adapters.rank
            break
    return model.num_layers * layer + 4 * padded_vocab * h - unneeded
