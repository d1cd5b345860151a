"""Model FLOPs of transformer layers."""

from __future__ import annotations

from orchestrator.spec.model import ModelSpec


def layers_flops(model: ModelSpec) -> float:
    """Floating-point operations of forward and backward of all layers over one token."""
    h, matrices = model.hidden_size, 3 if model.is_gated else 2
    routed = sum(model.moe_layers)
    attention = 6 * attention_products(model) + 12 * scores_width(model) * attended(model)
    dense = 6 * matrices * h * model.ffn_size
    experts = 6 * h * (matrices * model.active_ffn_size + model.expert_count)
    return model.num_layers * attention + (model.num_layers - routed) * dense + routed * experts


def attention_products(model: ModelSpec) -> int:
    """Products of one attention's matrices for each token, a multiplication and an addition each."""
    return sum(each.inputs * each.outputs for each in model.attention.matrices.matrices(model))


def scores_width(model: ModelSpec) -> int:
    """Products of one token with another, of queries with keys or of scores with values."""
    return model.attention.matrices.scores(model).width


def attended(model: ModelSpec) -> float:
    """The s of attention, the mean over the layers: with a window twice what a token sees on average."""
    length, window = model.seq_length, model.sliding_window
    if window is None or window >= length:
        return length
    full = 0 if model.window_attn_skip_freq is None else model.num_layers // model.window_attn_skip_freq
    share = full / model.num_layers
    return share * length + (1 - share) * window * (2 - window / length)
