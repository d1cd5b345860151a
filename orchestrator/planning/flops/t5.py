"""Model FLOPs of a T5: its halves have sequences of their own, and the decoder attends to the encoder as well."""

from __future__ import annotations

from orchestrator.spec.model import ModelSpec

T5_FORMULA = (
    "samples * (6*Se*(E*(4*h*q + m*h*f) + 2*D*h*q) + 12*E*q*Se*Se + 6*Sd*D*(6*h*q + m*h*f) + 12*D*q*Sd*(Sd + Se) "
    "+ 6*Sd*V*h); Se and Sd sequences of encoder and decoder, E and D their layers, h hidden, q query width, "
    "m MLP matrices (2, gated 3), f ffn width, V padded vocabulary; tokens are samples * (Se + Sd)"
)
"""As `flops.FORMULA`."""


def t5_flops(model: ModelSpec, tokens: int, padded_vocab: int, causal: bool = False) -> float:
    """Floating-point operations of forward and backward over `tokens` tokens, of encoder and decoder together.
    `causal`: half of the decoder's scores of itself, which alone are masked so.
    """
    h, query = model.hidden_size, model.num_attention_heads * model.head_dim
    mlp = (3 if model.is_gated else 2) * h * model.ffn_size
    encoded, decoded = model.seq_length, model.sample_length - model.seq_length
    # Keys and values of the cross attention are made of the encoder's tokens, in every layer of the decoder.
    encoder = 6 * encoded * (model.encoder_layers * (4 * h * query + mlp) + model.decoder_layers * 2 * h * query)
    encoder += 12 * model.encoder_layers * query * encoded * encoded
    decoder: float = 6 * decoded * model.decoder_layers * (6 * h * query + mlp)
    decoder += 12 * model.decoder_layers * query * decoded * (decoded / (2 if causal else 1) + encoded)
    return float(tokens * (encoder + decoder + 6 * decoded * padded_vocab * h) / model.sample_length)
