"""Seconds of attention as fused kernels do it (FlashAttention; Dao 2023, Shah et al. 2024), and where its scores are
masked, lowered by distance or capped.
"""

from __future__ import annotations

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.models.blocks.grouped_query_attention.parameters import rotated_layers
from orchestrator.planning.flops.layers import seen_on_both_sides
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time.kernels.accesses import Kernels
from orchestrator.planning.time.kernels.gemm import peak
from orchestrator.planning.time.setting import Setting

_BLOCK = 128
"""Tokens of a block: those on the diagonal are computed whole."""
_STATED_LENGTH, _STATED_WIDTH = 4096, 128
_STATED_KEYS = (_STATED_LENGTH + _BLOCK) / 2
"""Efficiencies are stated for heads of this, and for as many keys as a query of a causal sequence has on average."""
_RECOMPUTATION = 2.5
"""The backward pass does five products where the forward does two."""


def attention_seconds(
    sequences: float,
    length: float,
    heads: float,
    head_dim: float,
    device: Device,
    dtype: str,
    kernels: Kernels,
    *,
    causal: bool = True,
    drops: bool = False,
    parts: int = 1,
) -> ForwardBackward:
    """Forward and backward over `sequences` of `length` tokens with `heads` heads; causal: half the scores masked.
    `parts`: ranks that share each sequence, of which `sequences` counts this one's part. Among their pieces only those
    of the same tokens are masked within.
    """
    fitted = device.fitted.attention
    keys = (length + _BLOCK) / 2 if causal else length
    waiting = fitted.last_heads * min(_STATED_LENGTH / length, 1.0) / parts if causal and not device.is_cpu else 0.0
    flops = 4.0 * (sequences * heads + waiting) * length  # of a key, and of one number of a head
    width = head_dim + fitted.softmax_width
    drawn = kernels.score_dropout if drops else ForwardBackward(0, 0)
    efficiency = device.efficiency
    if kernels.fused_attention:
        reached = ForwardBackward(efficiency.fused_attention_forward, efficiency.fused_attention_backward)
    else:
        reached = ForwardBackward(efficiency.attention_forward, efficiency.attention_backward)

    def seconds(beside: float, drawn: float, reached: float) -> float:
        stated = (_STATED_WIDTH + fitted.softmax_width) / _STATED_WIDTH * (_STATED_KEYS + beside) / _STATED_KEYS
        rate = peak(device, dtype) * stated * reached * kernels.attention_rate
        return flops * (keys * (width + drawn) + beside * width) / rate

    return ForwardBackward(
        seconds(fitted.query_keys.forward, drawn.forward, reached.forward),
        _RECOMPUTATION * seconds(fitted.query_keys.backward, drawn.backward, reached.backward),
    )


def width_of_kernel(width: float, device: Device) -> tuple[float, ForwardBackward]:
    """The width as which heads of this one are computed, and how many times as long as `attention_seconds` says that
    takes.
    """
    for widest, forward, backward in device.fitted.attention.widths:
        if width <= widest:
            return widest, ForwardBackward(forward, backward)
    return width, ForwardBackward(1.0, 1.0)


def attends_to_a_mask(setting: Setting) -> bool:
    """Whether attention is torch's in all layers of both backends, with a mask or a bias of every score."""
    return _keeps_scores(setting) or setting.model.position_embedding_type == "alibi" or setting.job.masks_attention


def _keeps_scores(setting: Setting) -> bool:
    in_parts = setting.cp > 1 or setting.job.masks_attention
    return setting.model.keeps_scores(setting.kernels.layers, in_parts=in_parts)


def goes_round(setting: Setting) -> bool:
    """Whether the keys and values of ranks that share a sequence go round in a ring: Transformer Engine's way, of all
    layers but those that attend to a mask or a window.
    """
    in_windows = setting.model.sliding_window is not None
    return setting.cp > 1 and setting.kernels.rings and not (attends_to_a_mask(setting) or in_windows)


def attention_of_variant(setting: Setting, causal: ForwardBackward) -> ForwardBackward:
    """The mean over the layers. `causal`: the seconds of plain causal attention in one layer, or of an encoder's to all
    tokens.
    """
    model = setting.model
    length, window = model.seq_length, model.sliding_window
    if attends_to_a_mask(setting):
        return _masked(setting, causal, capped=_keeps_scores(setting))
    whole = _in_pieces(setting, causal)
    if model.has_chunks:
        rotated = rotated_layers(model)
        share = 1 - rotated + rotated * model.share_in_chunks
        return ForwardBackward(share * whole.forward, share * whole.backward)
    if window is None or window >= length:
        return whole
    full = model.windowed_layers.count(False) / model.num_layers
    if setting.kernels.fused_attention and setting.cp == 1:
        local = _in_window(setting, causal, length, window)
    else:
        local = _masked(setting, causal, capped=False)
    return ForwardBackward(
        full * whole.forward + (1 - full) * local.forward, full * whole.backward + (1 - full) * local.backward
    )


def _in_pieces(setting: Setting, causal: ForwardBackward) -> ForwardBackward:
    """The same, by torch, where ranks that share a sequence gather its keys and values."""
    if setting.cp == 1 or goes_round(setting):
        return causal
    slowdown = setting.device.fitted.attention.gathered_slowdown
    return ForwardBackward(slowdown * causal.forward, slowdown * causal.backward)


def _masked(setting: Setting, causal: ForwardBackward, capped: bool) -> ForwardBackward:
    """With a mask, torch's attention computes every score, and its kernel is the one for both layer backends. Scores
    with a sink pass as many kernels as capped ones (`capped`).
    """
    efficiency = setting.device.efficiency
    computed = 2 if setting.model.family.is_decoder_only else 1
    forward, backward = computed * causal.forward, computed * causal.backward
    if setting.kernels.fused_attention:
        forward *= efficiency.fused_attention_forward / efficiency.attention_forward
        backward *= efficiency.fused_attention_backward / efficiency.attention_backward
    if not capped:
        slowdown = setting.device.fitted.attention.masked_slowdown
        return ForwardBackward(slowdown * forward, slowdown * backward)
    scores = setting.tokens * setting.model.num_attention_heads / setting.tp * setting.model.seq_length * setting.size
    capping = setting.device.fitted.attention.softcapping
    return ForwardBackward(
        forward + setting.streaming(capping.forward * scores), backward + setting.streaming(capping.backward * scores)
    )


def _in_window(setting: Setting, whole: ForwardBackward, length: int, window: int) -> ForwardBackward:
    """Where each token attends to those in a window: what there is to do for a query remains, and blocks at both ends
    of its window are computed whole.
    """
    if setting.model.family.is_decoder_only:
        keys, seen = (length + _BLOCK) / 2, window * (2 * length - window) / (2 * length)
    else:
        keys, seen = float(length), seen_on_both_sides(window, length) * length
    seen, beside = min(seen + _BLOCK, keys), setting.device.fitted.attention.query_keys
    return ForwardBackward(
        whole.forward * (seen + beside.forward) / (keys + beside.forward),
        whole.backward * (seen + beside.backward) / (keys + beside.backward),
    )
