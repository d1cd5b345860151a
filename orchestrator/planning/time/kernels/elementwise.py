"""Seconds of what only moves memory: norms, activations, residuals, rotation, the loss, accumulation, the optimizer."""

from __future__ import annotations

from orchestrator.kernel_selection.fused_kernels import lacks_tuned_norm, normalizes_in_kernels
from orchestrator.models.blocks.base import NOTHING, CoreWork, ForwardBackward
from orchestrator.models.blocks.residual_stream import time as residual_stream
from orchestrator.models.layers import Layer
from orchestrator.planning.time.kernels.attention import attends_to_a_mask
from orchestrator.planning.time.setting import Setting


def layer_seconds(setting: Setting, layer: Layer, branches: int | None = None) -> ForwardBackward:
    """The memory-bound parts of a layer's blocks over a micro-batch, each with a branch, or with so many. Where linear
    layers have biases, the gradient of the one behind an MLP is counted with the attention's.
    """
    model, kernels, fitted = setting.model, setting.kernels, setting.device.fitted.elementwise
    gate = fitted.gated if model.is_gated else kernels.gelu if model.activation == "gelu" else fitted.activation
    hidden = setting.own_tokens * model.hidden_size
    moved, biased, behind = NOTHING.plus(_branch(setting), (branches or len(layer)) * hidden), 0.0, 0.0
    work = _core_work(setting)
    for block in layer:
        matrices = block.parameters.matrices(model)
        columns = (each for each in matrices if each.parallel == "column" and each.has_bias)
        biased += sum(setting.rows(each) * setting.part(each)[1] for each in columns)
        moved = moved.plus(block.moved(model, work))
        behind += 2 * hidden if block.counts_mlp else 0.0
        if block.has_activation:
            inner = sum(setting.rows(each) * setting.part(each)[0] for each in matrices if each.parallel == "row")
            moved = moved.plus(gate, inner)
    if model.add_bias_linear:
        gradients = 0.0 if setting.is_frozen else kernels.bias.backward * (biased + behind)
        moved = moved.plus(ForwardBackward(kernels.bias.forward * biased, gradients))
    return ForwardBackward(*(setting.streaming(each * setting.size) for each in moved))


def _core_work(setting: Setting) -> CoreWork:
    norm = norm_accesses(setting, setting.model.head_dim if setting.model.qk_layernorm_scope == "head" else None)
    is_fused = setting.dtype != "fp32" and not attends_to_a_mask(setting)
    return CoreWork(
        setting.tokens, setting.tp, setting.cp, setting.kernels, norm, setting.rotates_at_once, is_fused=is_fused
    )


def branch_seconds(setting: Setting) -> ForwardBackward:
    """What goes with an attention or an MLP: the norms around it, its dropout, and adding it to the residual stream."""
    return layer_seconds(setting, (), branches=1)


def _branch(setting: Setting) -> ForwardBackward:
    """Accesses of [tokens, h]."""
    dropped = setting.kernels.dropout if setting.model.hidden_dropout else NOTHING
    norms = residual_stream.norms(setting.model, norm_accesses(setting))
    return norms.plus(setting.device.fitted.elementwise.residual).plus(dropped)


def norm_accesses(setting: Setting, width: int | None = None) -> ForwardBackward:
    """Accesses of a norm of this width, the stream's by default; one that is frozen has its input's gradient alone,
    from what is read once.
    """
    model, kernels = setting.model, setting.kernels
    norm = kernels.norm
    if kernels.norm_of_any_width is not None and lacks_tuned_norm(model.normalization, width or model.hidden_size):
        own = kernels.own_norm if normalizes_in_kernels(setting.job, kernels.layers) else None
        norm = own or kernels.norm_of_any_width
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
    loss, norm = setting.kernels.loss, norm_accesses(setting)
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
    return setting.streaming(share * (update + _of_narrow_moments(setting)) + parameters * setting.gradient_size)


def _of_narrow_moments(setting: Setting) -> int:
    """Bytes per parameter more where moments in 16 bits are brought to fp32 and back: of each such moment, and of
    clipping and writing the weights, which are passes of their own then. Counted, not measured.
    """
    optimizer = setting.job.optimizer
    if not optimizer.narrow_moments:
        return 0
    clipped = _STATE if optimizer.clip_grad > 0 else 0
    return optimizer.narrow_moments * (_NARROW + _STATE) + clipped + _STATE // 2


_NARROW = 4
"""Bytes of reading and writing a moment in 16 bits."""
