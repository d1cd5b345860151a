"""Seconds of a T5's layers and stages."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.models.blocks.grouped_query_attention.parameters import cross_matrices
from orchestrator.planning.encoder_decoder import half_job
from orchestrator.planning.time.kernels.attention import attention_seconds
from orchestrator.planning.time.kernels.elementwise import layer_seconds
from orchestrator.planning.time.passes import Pass, add, layer_pass, linear_passes, scale, split
from orchestrator.planning.time.setting import Setting, setting_of
from orchestrator.spec.encoder_decoder import HALVES, Half


def settings_of_halves(setting: Setting) -> dict[Half, Setting]:
    """The numbers of both halves by themselves. Their attention takes a mask, and is torch's with any layers."""
    kernels = replace(setting.kernels, returns_together=False)
    return {
        half: replace(
            setting_of(half_job(setting.job, half), setting.padded_vocab, kernels, setting.device),
            captured=setting.captured,
            host_slowness=setting.host_slowness,
        )
        for half in HALVES
    }


def half_layer_pass(half: Half, settings: dict[Half, Setting]) -> Pass:
    """One layer of the encoder or of the decoder."""
    own = settings[half]
    layer = layer_pass(own)
    if own.model.position_embedding_type == "relative":
        samples = own.sequences if half == "encoder" else 1
        scores = samples * own.model.num_attention_heads / own.tp * own.model.seq_length**2 * own.size
        bias = own.device.fitted.encoder_decoder.bias
        layer = Pass(
            add(layer.forward, {"attention": own.streaming(bias.forward * scores)}),
            add(layer.backward, {"attention": own.streaming(bias.backward * scores)}),
        )
    if half == "encoder":
        return layer
    cross = _cross_attention(own, settings["encoder"])
    return Pass(add(layer.forward, cross.forward), add(layer.backward, cross.backward))


def _cross_attention(decoder: Setting, encoder: Setting) -> Pass:
    """Queries of the decoder's tokens, keys and values of the encoder's."""
    first, second, last = split(cross_matrices(decoder.model), decoder.tp)
    own = linear_passes(decoder, [first, last], decoder.products)
    others = linear_passes(encoder, [second], encoder.products)
    attention = attention_seconds(
        decoder.sequences,
        (decoder.model.seq_length * encoder.model.seq_length) ** 0.5,
        decoder.model.num_attention_heads / decoder.tp,
        decoder.model.head_dim,
        decoder.device,
        decoder.dtype,
        decoder.kernels,
        causal=False,
        drops=decoder.model.attention_dropout > 0,
    )
    memory = layer_seconds(decoder, (decoder.model.attention,), branches=2)  # this is one
    moved = Pass({"memory_bound": memory.forward}, {"memory_bound": memory.backward})
    return Pass(
        add(own.forward, others.forward, {"attention": attention.forward}, scale(moved.forward, 0.5)),
        add(own.backward, others.backward, {"attention": attention.backward}, scale(moved.backward, 0.5)),
    )
