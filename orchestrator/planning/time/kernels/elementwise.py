"""Seconds of what only moves memory: norms, activations, residuals, rotation, the loss, accumulation, the optimizer."""

from __future__ import annotations

from orchestrator.kernel_selection.fused_kernels import rotates_projection
from orchestrator.models.blocks.base import CoreWork, ForwardBackward
from orchestrator.planning.time.kernels.attention import attends_to_a_mask
from orchestrator.planning.time.setting import Setting


def layer_seconds(setting: Setting, ffn: float) -> ForwardBackward:
    """The memory-bound parts of one layer over a micro-batch. `ffn`: elements inside its MLP, or inside its experts."""
    model, kernels = setting.model, setting.kernels
    norm, branch = _norm(setting), _branch(setting)
    hidden = setting.own_tokens * model.hidden_size
    hidden = setting.own_tokens * model.hidden_size
    block, work = model.attention, _core_work(setting, norm)
    inputs = block.time.moved(model, work)
    forward = 2 * branch.forward * hidden + inputs.forward
    backward = 2 * branch.backward * hidden + inputs.backward
    fitted = setting.device.fitted.elementwise
    gate = fitted.gated if model.is_gated else kernels.gelu if model.activation == "gelu" else fitted.activation
    forward += gate.forward * ffn
    backward += gate.backward * ffn
    if model.add_bias_linear:
        columns = sum(each.outputs for each in block.matrices.matrices(model) if each.parallel == "column")
        widths = setting.tokens * columns / setting.tp + ffn * (2 if model.is_gated else 1)
        forward += kernels.bias.forward * widths
        backward += 0.0 if setting.is_frozen else kernels.bias.backward * (widths + 2 * hidden)
    return ForwardBackward(setting.streaming(forward * setting.size), setting.streaming(backward * setting.size))


def _core_work(setting: Setting, norm: ForwardBackward) -> CoreWork:
    is_fused = setting.dtype != "fp32" and not attends_to_a_mask(setting)
    return CoreWork(
        setting.tokens, setting.tp, setting.cp, setting.kernels, norm, rotates_at_once(setting), is_fused=is_fused
    )


def rotates_at_once(setting: Setting) -> bool:
    """Whether one kernel rotates queries and keys as their projection left them."""
    kernels = setting.kernels
    return kernels.projection is not None and rotates_projection(setting.job, kernels.layers)


def branch_seconds(setting: Setting) -> ForwardBackward:
    """What goes with an attention or an MLP: the norm before it, its dropout, and adding it to the residual stream."""
    branch, moved = _branch(setting), setting.own_tokens * setting.model.hidden_size * setting.size
    return ForwardBackward(setting.streaming(branch.forward * moved), setting.streaming(branch.backward * moved))


def _branch(setting: Setting) -> ForwardBackward:
    """Accesses of [tokens, h]."""
    norm, dropped = _norm(setting), setting.kernels.dropout if setting.model.hidden_dropout else ForwardBackward(0, 0)
    residual = setting.device.fitted.elementwise.residual
    return ForwardBackward(
        norm.forward + residual.forward + dropped.forward, norm.backward + residual.backward + dropped.backward
    )


def _norm(setting: Setting) -> ForwardBackward:
    """Accesses of a norm; one that is frozen has its input's gradient alone, from what is read once."""
    norm = setting.kernels.norm
    if not setting.is_frozen:
        return norm
    return ForwardBackward(norm.forward, min(norm.backward, setting.device.fitted.elementwise.frozen_norm))


def embedding_seconds(setting: Setting) -> ForwardBackward:
    """Looking up a micro-batch's tokens, and the dense gradient of the table."""
    rows = setting.tokens * setting.model.hidden_size * setting.size
    table = setting.padded_vocab / setting.tp * setting.model.hidden_size * setting.size
    return ForwardBackward(setting.streaming(3 * rows), setting.streaming(table + 3 * rows))


def loss_seconds(setting: Setting) -> ForwardBackward:
    """The cross entropy over this rank's part of the vocabulary, in fp32, and the norm before it."""
    logits = setting.tokens * setting.padded_vocab / setting.tp
    loss, norm = setting.kernels.loss, _norm(setting)
    hidden = setting.own_tokens * setting.model.hidden_size * setting.size
    return ForwardBackward(
        setting.streaming(logits * loss.forward + hidden * norm.forward),
        setting.streaming(logits * loss.backward + hidden * norm.backward),
    )


_STATE = 8
"""Bytes of reading and writing one tensor of the optimizer's state, per parameter."""


def accumulation_seconds(setting: Setting, parameters: int) -> float:
    """Adding the gradients of one micro-batch to the buffer: the same however small the micro-batch is."""
    return setting.streaming(parameters * setting.kernels.accumulation)


def optimizer_seconds(setting: Setting, parameters: int, replicas: int) -> float:
    """One update of this rank's share of the parameters, and the gradient buffer set to zero."""
    share = parameters / (replicas if setting.job.parallelism.use_distributed_optimizer else 1)
    update = setting.kernels.optimizer - _STATE * (2 - setting.job.optimizer.state_tensors)  # measured with Adam
    return setting.streaming(share * update + parameters * setting.gradient_size)
