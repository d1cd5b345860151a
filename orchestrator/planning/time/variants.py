"""Seconds of attention whose scores are masked, lowered by distance or capped, from those of plain causal attention."""

from __future__ import annotations

from orchestrator.planning.time.kernels import ForwardBackward
from orchestrator.planning.time.setting import Setting

_CAPPED = ForwardBackward(16, 24)
"""Accesses of each score, beside the two products: to scale, cap, mask and normalise it, one kernel after the other."""
_IN_PIECES, _FASTER_ON = 1.85, "Hopper"
"""How many times as long torch's attention takes over a sequence that ranks share: a piece of it sees more keys than it
has queries, for which torch has FlashAttention 2, and on these GPUs a faster kernel for all else (1.7B, 16,384 tokens
on two H100s; docs/benchmarks/2026-11-26-h100.md). Others are planned by FlashAttention 2's speed as it is.
"""


def attends_to_a_mask(setting: Setting) -> bool:
    """Whether attention is torch's in all layers of both backends, with a mask or a bias of every score."""
    model = setting.model
    changed = model.attention_logit_softcapping is not None or model.position_embedding_type == "alibi"
    return changed or setting.job.data.packs


def goes_round(setting: Setting) -> bool:
    """Whether the keys and values of ranks that share a sequence go round in a ring: Transformer Engine's way, of all
    layers but those that attend to a mask or a window.
    """
    in_windows = setting.model.sliding_window is not None
    return setting.cp > 1 and setting.kernels.rings and not (attends_to_a_mask(setting) or in_windows)


def attention_of_variant(setting: Setting, causal: ForwardBackward) -> ForwardBackward:
    """The mean over the layers. `causal`: the seconds of plain causal attention in one layer."""
    model = setting.model
    length, window = model.seq_length, model.sliding_window
    capped = model.attention_logit_softcapping is not None
    if attends_to_a_mask(setting):
        return _masked(setting, causal, capped)
    whole = _in_pieces(setting, causal)
    if window is None or window >= length:
        return whole
    skipped = 0 if model.window_attn_skip_freq is None else model.num_layers // model.window_attn_skip_freq
    full = skipped / model.num_layers
    if setting.kernels.fused_attention and setting.cp == 1:
        seen = window * (2 * length - window) / length**2  # of the pairs below the diagonal
        local = ForwardBackward(seen * causal.forward, seen * causal.backward)
    else:
        local = _masked(setting, causal, capped=False)
    return ForwardBackward(
        full * whole.forward + (1 - full) * local.forward, full * whole.backward + (1 - full) * local.backward
    )


def _in_pieces(setting: Setting, causal: ForwardBackward) -> ForwardBackward:
    """The same, by torch, where ranks that share a sequence gather its keys and values."""
    if setting.cp == 1 or goes_round(setting) or setting.device.generation != _FASTER_ON:
        return causal
    return ForwardBackward(_IN_PIECES * causal.forward, _IN_PIECES * causal.backward)


def _masked(setting: Setting, causal: ForwardBackward, capped: bool) -> ForwardBackward:
    """With a mask, torch's attention computes every score, and its kernel is the one for both layer backends."""
    efficiency = setting.device.efficiency
    forward, backward = 2 * causal.forward, 2 * causal.backward
    if setting.kernels.fused_attention:
        forward *= efficiency.fused_attention_forward / efficiency.attention_forward
        backward *= efficiency.fused_attention_backward / efficiency.attention_backward
    if not capped:
        return ForwardBackward(forward, backward)
    scores = setting.tokens * setting.model.num_attention_heads / setting.tp * setting.model.seq_length * setting.size
    return ForwardBackward(
        forward + setting.streaming(_CAPPED.forward * scores), backward + setting.streaming(_CAPPED.backward * scores)
    )
