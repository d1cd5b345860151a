"""Seconds of attention whose scores are masked, lowered by distance or capped, from those of plain causal attention."""

from __future__ import annotations

from orchestrator.planning.time.kernels import Passes
from orchestrator.planning.time.setting import Setting

_CAPPED = Passes(16, 24)
"""Accesses of each score, beside the two products: to scale, cap, mask and normalise it, one kernel after the other."""


def attends_to_a_mask(setting: Setting) -> bool:
    """Whether attention is torch's in all layers of both backends, with a mask or a bias of every score."""
    model = setting.model
    changed = model.attention_logit_softcapping is not None or model.position_embedding_type == "alibi"
    return changed or setting.job.data.packs


def attention_of_variant(setting: Setting, causal: Passes) -> Passes:
    """The mean over the layers. `causal`: the seconds of plain causal attention in one layer."""
    model = setting.model
    length, window = model.seq_length, model.sliding_window
    capped = model.attention_logit_softcapping is not None
    if attends_to_a_mask(setting):
        return _masked(setting, causal, capped)
    if window is None or window >= length:
        return causal
    skipped = 0 if model.window_attn_skip_freq is None else model.num_layers // model.window_attn_skip_freq
    full = skipped / model.num_layers
    if setting.kernels.fused_attention and setting.cp == 1:
        seen = window * (2 * length - window) / length**2  # of the pairs below the diagonal
        local = Passes(seen * causal.forward, seen * causal.backward)
    else:
        local = _masked(setting, causal, capped=False)
    return Passes(
        full * causal.forward + (1 - full) * local.forward, full * causal.backward + (1 - full) * local.backward
    )


def _masked(setting: Setting, causal: Passes, capped: bool) -> Passes:
    """With a mask, torch's attention computes every score, and its kernel is the one for both layer backends."""
    efficiency = setting.device.efficiency
    forward, backward = 2 * causal.forward, 2 * causal.backward
    if setting.kernels.fused_attention:
        forward *= efficiency.fused_attention_forward / efficiency.attention_forward
        backward *= efficiency.fused_attention_backward / efficiency.attention_backward
    if not capped:
        return Passes(forward, backward)
    scores = setting.tokens * setting.model.num_attention_heads / setting.tp * setting.model.seq_length * setting.size
    return Passes(
        forward + setting.streaming(_CAPPED.forward * scores), backward + setting.streaming(_CAPPED.backward * scores)
    )
