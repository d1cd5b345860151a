"""Seconds of what only moves memory: norms, activations, residuals, rotation, the loss, accumulation, the optimizer."""

from __future__ import annotations

from orchestrator.backends.fused_kernels import rotates_projection
from orchestrator.planning.time.kernels import ForwardBackward
from orchestrator.planning.time.setting import Setting
from orchestrator.planning.time.variants import attends_to_a_mask


def layer_seconds(setting: Setting, ffn: float) -> ForwardBackward:
    """The memory-bound parts of one layer over a micro-batch. `ffn`: elements inside its MLP, or inside its experts."""
    model, kernels, tp = setting.model, setting.kernels, setting.tp
    norm, branch = _norm(setting), _branch(setting)
    hidden = setting.own_tokens * model.hidden_size
    query, key = setting.tokens * setting.query / tp, setting.tokens * setting.key / tp
    inputs = _attention_inputs(setting, query, key)
    forward = 2 * branch.forward * hidden + inputs.forward
    backward = 2 * branch.backward * hidden + inputs.backward
    gate = _GATED if model.is_gated else kernels.gelu if model.activation == "gelu" else _ACTIVATION
    forward += gate.forward * ffn
    backward += gate.backward * ffn
    if model.qk_layernorm:
        forward += norm.forward * (query + key)
        backward += norm.backward * (query + key)
    if model.add_bias_linear:
        widths = query + 2 * key + ffn * (2 if model.is_gated else 1)
        forward += kernels.bias.forward * widths
        backward += 0.0 if setting.is_frozen else kernels.bias.backward * (widths + 2 * hidden)
    return ForwardBackward(setting.streaming(forward * setting.size), setting.streaming(backward * setting.size))


def _attention_inputs(setting: Setting, query: float, key: float) -> ForwardBackward:
    """Elements moved between the projection and the attention, of so many in queries and keys."""
    kernels, model = setting.kernels, setting.model
    if rotates_at_once(setting):
        assert kernels.projection is not None
        is_grouped = key < query  # and goes to tensors of its own, values too
        moved = query + 2 * key if is_grouped or setting.cp > 1 else query + key
        return ForwardBackward(kernels.projection.forward * moved, kernels.projection.backward * moved)
    rotated = model.rotary_percent if model.position_embedding_type == "rope" else 0.0
    forward = kernels.rope.forward * rotated * (query + key) + kernels.attention_layout.forward * query
    backward = kernels.rope.backward * rotated * (query + key) + kernels.attention_layout.backward * query
    joined = 0 if kernels.returns_together and _lie_together(setting) else kernels.joins
    return ForwardBackward(forward, backward + joined * (query + 2 * key))


def rotates_at_once(setting: Setting) -> bool:
    """Whether one kernel rotates queries and keys as their projection left them."""
    kernels = setting.kernels
    return kernels.projection is not None and rotates_projection(setting.job, kernels.layers)


def _lie_together(setting: Setting) -> bool:
    """Whether the fused attention takes queries, keys and values as the projection left them."""
    model = setting.model
    evenly = model.query_groups == model.num_attention_heads and not model.qk_layernorm and setting.cp == 1
    is_fused = setting.dtype != "fp32" and not attends_to_a_mask(setting)
    return evenly and is_fused and model.position_embedding_type != "rope"


def branch_seconds(setting: Setting) -> ForwardBackward:
    """What goes with an attention or an MLP: the norm before it, its dropout, and adding it to the residual stream."""
    branch, moved = _branch(setting), setting.own_tokens * setting.model.hidden_size * setting.size
    return ForwardBackward(setting.streaming(branch.forward * moved), setting.streaming(branch.backward * moved))


def _branch(setting: Setting) -> ForwardBackward:
    """Accesses of [tokens, h]."""
    norm, dropped = _norm(setting), setting.kernels.dropout if setting.model.hidden_dropout else ForwardBackward(0, 0)
    return ForwardBackward(
        norm.forward + _RESIDUAL.forward + dropped.forward, norm.backward + _RESIDUAL.backward + dropped.backward
    )


def _norm(setting: Setting) -> ForwardBackward:
    """Accesses of a norm; one that is frozen has its input's gradient alone, from what is read once."""
    norm = setting.kernels.norm
    return ForwardBackward(norm.forward, min(norm.backward, _FROZEN_NORM)) if setting.is_frozen else norm


_FROZEN_NORM = 3
_RESIDUAL = ForwardBackward(3, 3)
"""Adding a branch to the residual stream, and its gradient to the stream's."""
_ACTIVATION = ForwardBackward(3, 4.3)
"""Of [tokens, ffn]: what is neither gated nor the exact GeLU."""
_GATED = ForwardBackward(3, 5)
"""Of [tokens, ffn]: SwiGLU over both halves."""


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
