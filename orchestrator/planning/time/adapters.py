"""Seconds of a layer's low-rank adapters, as runtime/network/lora.py computes them: beside their matrices, one after
the other.

What is frozen is told by `Setting.is_frozen`: its linear layers compute no gradients of weights.
"""

from __future__ import annotations

from orchestrator.models.blocks.base import NOTHING, ForwardBackward, Matrix
from orchestrator.models.layers import Layer, layers
from orchestrator.planning.layout.chunk_layers import Shares
from orchestrator.planning.parameters.adapters import adapted_matrices, held_adapters
from orchestrator.planning.time.communication import group_of
from orchestrator.planning.time.kernels.gemm import Linear, gemm_seconds
from orchestrator.planning.time.passes import Pass, add, split
from orchestrator.planning.time.setting import Setting

MATRICES = 2
"""Of an adapter."""


def adapted(setting: Setting, layer: Layer, computed: Pass) -> Pass:
    """What a layer takes with its adapters, where the model has some."""
    for matrix in adapted_matrices(setting.model, layer):
        beside = _beside(setting, matrix) if matrix.routing is None else _beside_experts(setting, matrix)
        computed = Pass(add(computed.forward, beside.forward), add(computed.backward, beside.backward))
    return computed


def tensors_of_adapters(setting: Setting) -> int:
    """How many tensors the optimizer updates of a layer: of the one that has the most."""
    return MATRICES * max(_held(setting, layer) for layer in set(layers(setting.model)))


def _held(setting: Setting, layer: Layer) -> int:
    return sum(held_adapters(each, setting.shape.degrees) for each in adapted_matrices(setting.model, layer))


def launches(setting: Setting, shares: Shares) -> ForwardBackward:
    """Kernels that the host starts for a layer beside those of one that is trained whole."""
    if not setting.model.has_adapters:
        return ForwardBackward(0, 0)
    count = sum(share * _held(setting, (block,)) for block, share in shares.items())
    fitted = setting.device.fitted.adapters
    return ForwardBackward(count * fitted.launches.forward, count * fitted.launches.backward - fitted.frozen_launches)


def _beside(setting: Setting, matrix: Matrix) -> Pass:
    """One adapter. A rank's tokens change between its matrices: from its share to all, or the other way."""
    [linear] = split([matrix], setting.tp)
    entering = {"column": setting.own_tokens, "row": setting.tokens, "replicated": setting.own_tokens}
    leaving = {"column": setting.tokens, "row": setting.own_tokens, "replicated": setting.own_tokens}
    first, second = entering[matrix.parallel], leaving[matrix.parallel]
    products, moved = _products(setting, linear, first, second), _moved(setting, linear, first, second)
    sent = NOTHING if matrix.parallel == "replicated" else _sent(setting, linear, setting.model.adapters.rank)
    return Pass(
        {"gemm": products.forward, "memory_bound": moved.forward, "tensor_parallel": sent.forward},
        {"gemm": products.backward, "memory_bound": moved.backward, "tensor_parallel": sent.backward},
    )


def _beside_experts(setting: Setting, matrix: Matrix) -> Pass:
    """One adapter for each of a rank's experts, one after the other. Ranks that split an expert sum the gradient of
    what each has whole.
    """
    etp, count, rows = setting.shape.degrees.etp, held_adapters(matrix, setting.shape.degrees), setting.rows(matrix)
    [linear] = split([matrix], etp)
    products, moved = _products(setting, linear, rows / count, rows / count), _moved(setting, linear, rows, rows)
    group = group_of(setting.job, setting.device, etp, 1)
    whole = setting.model.adapters.rank * (linear.inputs if linear.is_column else linear.outputs) * setting.size
    return Pass(
        {"gemm": count * products.forward, "memory_bound": moved.forward},
        {
            "gemm": count * products.backward,
            "memory_bound": moved.backward,
            "tensor_parallel": count * group.reduce_seconds(whole),
        },
    )


def _products(setting: Setting, linear: Linear, first: float, second: float) -> ForwardBackward:
    """Seconds of an adapter's products, of so many tokens with its first and its second matrix."""
    device, dtype, rank = setting.device, setting.dtype, setting.model.adapters.rank
    forward = backward = 0.0
    for tokens, inputs, outputs in ((first, linear.inputs, rank), (second, rank, linear.outputs)):
        forward += gemm_seconds(tokens, outputs, inputs, device, dtype)
        backward += gemm_seconds(tokens, inputs, outputs, device, dtype)
        backward += gemm_seconds(outputs, inputs, tokens, device, dtype)
    return ForwardBackward(forward, backward)


def _moved(setting: Setting, linear: Linear, first: float, second: float) -> ForwardBackward:
    """Seconds of what is read and written beside them."""
    fitted = setting.device.fitted.adapters
    entering, leaving = first * linear.inputs * setting.size, second * linear.outputs * setting.size
    dropped = fitted.dropout if setting.model.adapters.lora_dropout > 0 else ForwardBackward(0, 0)
    return ForwardBackward(
        setting.streaming(fitted.added.forward * leaving + dropped.forward * entering),
        setting.streaming(fitted.added.backward * leaving + (fitted.joined + dropped.backward) * entering),
    )


def _sent(setting: Setting, linear: Linear, rank: int) -> ForwardBackward:
    """What tensor-parallel ranks send of the narrow [tokens, rank] between its matrices: nothing hides it."""
    group = group_of(setting.job, setting.device, setting.tp, 1)
    narrow = setting.tokens * rank * setting.size
    if setting.sp:
        return ForwardBackward(group.gather_seconds(narrow), group.gather_seconds(narrow))
    reduced = group.reduce_seconds(narrow)
    return ForwardBackward(0.0, reduced) if linear.is_column else ForwardBackward(reduced, 0.0)
