"""Seconds of a layer's low-rank adapters, as runtime/network/lora.py computes them: beside their matrices, one after
the other.

What is frozen is told by `Setting.is_frozen`: its linear layers compute no gradients of weights.
"""

from __future__ import annotations

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.models.layers import layers, matrices_of
from orchestrator.planning.time.communication import group_of
from orchestrator.planning.time.kernels.gemm import Linear, gemm_seconds
from orchestrator.planning.time.passes import Pass, add, split
from orchestrator.planning.time.setting import Setting

MATRICES = 2
"""Of an adapter."""


def adapted(setting: Setting, layer: Pass) -> Pass:
    """A layer with its adapters, where the model has some."""
    if not setting.model.has_adapters:
        return layer
    lora = setting.model.adapters
    matrices = matrices_of(setting.model, layers(setting.model)[0])
    for matrix, linear in zip(matrices, split(matrices, setting.tp), strict=True):
        if matrix.name in lora.target_modules:
            beside = _beside(setting, linear, lora.rank, drops=lora.lora_dropout > 0)
            layer = Pass(add(layer.forward, beside.forward), add(layer.backward, beside.backward))
    return layer


def launches(setting: Setting) -> ForwardBackward:
    """Kernels that the host starts for a layer beside those of one that is trained whole."""
    if not setting.model.has_adapters:
        return ForwardBackward(0, 0)
    count, fitted = len(setting.model.adapters.target_modules), setting.device.fitted.adapters
    return ForwardBackward(count * fitted.launches.forward, count * fitted.launches.backward - fitted.frozen_launches)


def _beside(setting: Setting, linear: Linear, rank: int, *, drops: bool) -> Pass:
    """One adapter. A rank's tokens change between its matrices: from its share to all, or the other way."""
    device, dtype, fitted = setting.device, setting.dtype, setting.device.fitted.adapters
    first, second = setting.own_tokens, setting.tokens
    if not linear.is_column:
        first, second = second, first
    forward = backward = 0.0
    for tokens, inputs, outputs in ((first, linear.inputs, rank), (second, rank, linear.outputs)):
        forward += gemm_seconds(tokens, outputs, inputs, device, dtype)
        backward += gemm_seconds(tokens, inputs, outputs, device, dtype)
        backward += gemm_seconds(outputs, inputs, tokens, device, dtype)
    entering, leaving = first * linear.inputs * setting.size, second * linear.outputs * setting.size
    dropped = fitted.dropout if drops else ForwardBackward(0, 0)
    moved = ForwardBackward(
        fitted.added.forward * leaving + dropped.forward * entering,
        fitted.added.backward * leaving + (fitted.joined + dropped.backward) * entering,
    )
    sent = _sent(setting, linear, rank)
    return Pass(
        {"gemm": forward, "memory_bound": setting.streaming(moved.forward), "tensor_parallel": sent.forward},
        {"gemm": backward, "memory_bound": setting.streaming(moved.backward), "tensor_parallel": sent.backward},
    )


def _sent(setting: Setting, linear: Linear, rank: int) -> ForwardBackward:
    """What tensor-parallel ranks send of the narrow [tokens, rank] between its matrices: nothing hides it."""
    group = group_of(setting.job, setting.device, setting.tp, 1)
    narrow = setting.tokens * rank * setting.size
    if setting.sp:
        return ForwardBackward(group.gather_seconds(narrow), group.gather_seconds(narrow))
    reduced = group.reduce_seconds(narrow)
    return ForwardBackward(0.0, reduced) if linear.is_column else ForwardBackward(reduced, 0.0)
