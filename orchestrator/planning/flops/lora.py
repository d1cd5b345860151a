"""Model FLOPs of training low-rank adapters: what is frozen needs the gradient of its input only, not of its weight."""

from __future__ import annotations

from orchestrator.models.layers import layers, matrices_of
from orchestrator.planning.flops.layers import scores_width
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
    matrices, width = matrices_of(model, layers(model)[0]), scores_width(model)
    frozen = sum(each.inputs * each.outputs for each in matrices)
    layer = 4 * frozen + 6 * adapter_parameters(model, 1) + 12 * width * attended
    unneeded = 0.0 if "linear_qkv" in model.adapters.target_modules else 8 * width * attended
    for matrix in matrices:
        unneeded += 2 * matrix.inputs * matrix.outputs
        if matrix.name in model.adapters.target_modules:
            unneeded += 2 * matrix.inputs * model.adapters.rank
            break
    return model.num_layers * layer + 4 * padded_vocab * model.hidden_size - unneeded
