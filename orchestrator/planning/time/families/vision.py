"""Seconds of encoding the images of a micro-batch, on the first stage: as many as its sequences may have. The figures
of its parts are those of other layers; steps of Gemma 3 with images were within 3 % of them.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

from orchestrator.kernel_selection.fused_kernels import filling
from orchestrator.models.blocks.base import NOTHING, ForwardBackward
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.layout.chunk_layers import Shares, kinds_of, shares_of
from orchestrator.planning.time.communication import group_of
from orchestrator.planning.time.host import LaunchTime, started_again, starts
from orchestrator.planning.time.kernels.elementwise import branch_seconds
from orchestrator.planning.time.kernels.gemm import Linear, gemm_seconds
from orchestrator.planning.time.passes import Pass, add, layer_pass, linear_passes, recomputed, scale
from orchestrator.planning.time.setting import Setting, setting_of
from orchestrator.planning.vision import CHANNELS, encoder_job, encoder_model, encoder_models, projector_widths
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec


class Images(NamedTuple):
    """What the first model chunk does more for a micro-batch."""

    passes: Pass
    starts: LaunchTime


def trained_layers(setting: Setting) -> int:
    """Layers that have as many tensors as what is trained for the images of a model; 0 where there are none."""
    model = setting.model
    if not model.has_vision:
        return 0
    return setting.device.fitted.vision.layers_beside + (
        0 if model.has_frozen_encoder else model.image_encoder.num_layers
    )


def images_of(setting: Setting) -> Images | None:
    """The encoder and what projects its output; None where there are no images. A frozen encoder has no backward
    pass.
    """
    if not setting.model.has_vision:
        return None
    vision = setting.model.image_encoder
    own = _encoder_setting(setting, vision, encoder_model(vision))
    launches = setting.device.fitted.vision.native_launches if vision.kind.keeps_shape else 1.0
    stacks = [_stack(_encoder_setting(setting, vision, each), vision, launches) for each in encoder_models(vision)]
    before, shares = _before(own, vision), _shares(own)
    projector, placed = _projector(own, vision, setting.model), _placed(setting, vision)
    forward = add(before.forward, *(stack.passes.forward for stack in stacks), projector.forward, placed.forward)
    backward = add(projector.backward, placed.backward)
    encoder = functools.reduce(LaunchTime.plus, (stack.starts for stack in stacks))
    beside = starts(own, own.device.fitted.vision.layers_beside, shares, 0.0)
    if vision.freeze:
        alone = LaunchTime(*(ForwardBackward(each.forward, 0.0) for each in encoder))
        return Images(Pass(forward, backward), beside.plus(alone))
    back = add(backward, *(stack.passes.backward for stack in stacks), before.backward)
    return Images(Pass(forward, back), beside.plus(encoder))


def _stack(own: Setting, vision: VisionSpec, launches: float) -> Images:
    """Layers of the encoder that are alike, what is recomputed included in their backward pass; each starts as many
    kernels as so many of a decoder's.
    """
    layers, shares = own.model.num_layers, _shares(own)
    both = zip(layer_pass(own), _rearranged(own, vision), strict=True)
    layer = Pass(*(add(each, {"memory_bound": moved}) for each, moved in both))
    twice = recomputed(own, layer, layers, shares)
    passes = Pass(scale(layer.forward, layers), add(scale(layer.backward, layers), twice))
    again = launches * started_again(own, layers, shares)
    return Images(passes, starts(own, launches * layers, shares, again))


def _rearranged(own: Setting, vision: VisionSpec) -> ForwardBackward:
    """Seconds in which a layer moves patches: into the slots of windows of several lengths and back, and with the
    zeros that an MLP's rows are filled up with for the product over them.
    """
    fitted, width = own.device.fitted.vision, vision.ffn_size // own.tp
    moved = NOTHING
    if own.model.seq_length < vision.positions:
        moved = moved.plus(fitted.in_windows, vision.hidden_size / own.tp)
    if filling(width, own.size):
        moved = moved.plus(fitted.filled_up, width)
    return ForwardBackward(*(own.streaming(each * own.tokens * own.size) for each in moved))


def _shares(own: Setting) -> Shares:
    return shares_of(kinds_of(layers_of(own.model)))


def _encoder_setting(setting: Setting, vision: VisionSpec, model: ModelSpec) -> Setting:
    """The encoder's attention is the layers' own."""
    kernels = replace(setting.kernels, attention_rate=1.0)
    own = setting_of(encoder_job(setting.job, vision, model), setting.padded_vocab, kernels, setting.device)
    return replace(own, captured=setting.captured, host_slowness=setting.host_slowness)


def _before(own: Setting, vision: VisionSpec) -> Pass:
    """Patches as vectors, whole on each tensor-parallel rank, to which positions are added, and a norm. Images have no
    gradient.
    """
    patches, width, device = own.sequences * vision.patches, vision.hidden_size, own.device
    inputs = CHANNELS * vision.patch_size**2
    normed, numbers = branch_seconds(own), own.streaming(device.fitted.vision.numbers * patches * inputs * own.size)
    return Pass(
        {"gemm": gemm_seconds(patches, width, inputs, device, own.dtype), "memory_bound": normed.forward + numbers},
        {"gemm": gemm_seconds(width, inputs, patches, device, own.dtype), "memory_bound": normed.backward},
    )


def _projector(own: Setting, vision: VisionSpec, model: ModelSpec) -> Pass:
    """From the encoder's width to the decoder's. The gradient of its input is computed behind a frozen encoder, too, as
    megatron-core's layers do not ask whether it is needed.
    """
    inputs, inner, hidden = projector_widths(model)
    if vision.kind.pools:
        return _pooled(own, vision, hidden)
    tokens, width = own.sequences * vision.tokens_per_image, inner / own.tp
    setting = replace(own, tokens=tokens, own_tokens=tokens)
    up, down = Linear(inputs, width, True), Linear(width, hidden, False)
    first, second = (linear_passes(setting, [linear], own.dtype) for linear in (up, down))
    bias, gelu = own.kernels.bias, own.kernels.gelu
    forward = bias.forward * (width + hidden) + gelu.forward * width
    backward = bias.backward * (width + hidden) + gelu.backward * width
    return Pass(
        add(first.forward, second.forward, {"memory_bound": own.streaming(forward * tokens * own.size)}),
        add(
            first.backward,
            second.backward,
            {"memory_bound": own.streaming(backward * tokens * own.size)},
        ),
    )


def _pooled(own: Setting, vision: VisionSpec, hidden: int) -> Pass:
    """A norm and a matrix, whole on each rank, of means of patches. These are read once, and each gets the gradient of
    its mean."""
    tokens, width, device = own.sequences * vision.tokens_per_image, vision.hidden_size, own.device
    normed = branch_seconds(replace(own, tokens=tokens, own_tokens=tokens))
    means = own.streaming((own.sequences * vision.patches + tokens) * width * own.size)
    product = gemm_seconds(tokens, hidden, width, device, own.dtype)
    gradients = gemm_seconds(tokens, width, hidden, device, own.dtype)
    gradients += gemm_seconds(hidden, width, tokens, device, own.dtype)
    return Pass(
        {"gemm": product, "memory_bound": normed.forward + means},
        {"gemm": gradients, "memory_bound": normed.backward + means},
    )


def _placed(setting: Setting, vision: VisionSpec) -> Pass:
    """Among the embeddings of words; under sequence parallelism by each rank in its part of the sequence, and the
    gradients of all patches are summed over the ranks then.
    """
    row = setting.model.hidden_size * setting.size
    own = setting.own_tokens * row
    patches = setting.sequences * vision.images_per_sequence * vision.tokens_per_image
    group = group_of(setting.job, setting.device, setting.tp, 1)
    placed = setting.device.fitted.vision.placed
    return Pass(
        {"memory_bound": setting.streaming(placed.forward * own)},
        {
            "memory_bound": setting.streaming(placed.backward * own),
            "tensor_parallel": group.reduce_seconds(patches * row) if setting.sp else 0.0,
        },
    )
