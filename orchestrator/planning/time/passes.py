"""Seconds of a forward and a backward pass over a micro-batch, by part: of a layer, the embedding, the output layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from orchestrator.kernel_selection.chunked_loss import tokens_of_chunk
from orchestrator.models.blocks.base import FP32, NOTHING, ForwardBackward, Matrix, Scan
from orchestrator.models.blocks.block import Branch
from orchestrator.models.layers import Layer, matrices_of
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.layout.chunk_layers import Shares, attending, recomputed_norms
from orchestrator.planning.time.communication import Group, group_of
from orchestrator.planning.time.expert_products import routed_seconds
from orchestrator.planning.time.kernels.attention import (
    attention_of_variant,
    attention_seconds,
    sink_gradient,
    width_of_kernel,
)
from orchestrator.planning.time.kernels.elementwise import embedding_seconds, layer_seconds, loss_seconds, norm_accesses
from orchestrator.planning.time.kernels.gemm import Linear, gemm_seconds, peak
from orchestrator.planning.time.kernels.quantization import casting_seconds, expert_casting_seconds
from orchestrator.planning.time.setting import Setting
from orchestrator.planning.time.token_exchange import dispatch_seconds, exchanging_group, moving_seconds
from orchestrator.spec.sections.quantization import ELEMENT_BYTES

Parts = dict[str, float]
"""Seconds by part."""


class Pass(NamedTuple):
    """A forward and a backward pass."""

    forward: Parts
    backward: Parts


_NOTHING: Final = Pass({}, {})


def add(*parts: Parts) -> Parts:
    """The sum, part by part."""
    total: Parts = {}
    for each in parts:
        for name, seconds in each.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def scale(parts: Parts, factor: float) -> Parts:
    """Each part so many times."""
    return {name: seconds * factor for name, seconds in parts.items()}


def layer_pass(setting: Setting, layer: Layer | None = None) -> Pass:
    """One layer: the products of its blocks, and what is between and around them; the model's first by default."""
    layer = layer or layers_of(setting.model)[0]
    memory, computed, sent = layer_seconds(setting, layer), [], []
    for block in layer:
        computed += [_core(setting, block), _scan(setting, block), _replicated(setting, block)]
        sent += [_exchanged(setting, block), _routed(setting, block)]
    products = linear_passes(setting, _linears(setting, layer), setting.products)
    around = Pass({"memory_bound": memory.forward}, {"memory_bound": memory.backward})
    each = [products, *computed, around, *sent]
    forward, backward = (add(*parts) for parts in zip(*each, strict=True))
    if setting.kernels.token_exchange.overlaps:
        forward, backward = _beside_another(setting, forward), _beside_another(setting, backward)
    return Pass(forward, backward)


def _beside_another(setting: Setting, parts: Parts) -> Parts:
    """The parts of a layer whose tokens are exchanged while a pass over another micro-batch computes as much."""
    sent = parts.get("expert_parallel", 0.0)
    computed = sum(parts.values()) - sent
    return {**parts, "expert_parallel": exchanging_group(setting).hidden(sent, computed)} if sent else parts


def _linears(setting: Setting, layer: Layer) -> list[Linear]:
    """What tensor parallelism splits of a layer's matrices."""
    every = matrices_of(setting.model, layer)
    return split((each for each in every if each.routing is None and each.parallel != "replicated"), setting.tp)


def _core(setting: Setting, block: Branch) -> Pass:
    """Attention, where a block has scores."""
    model, scores = setting.model, block.scores(setting.model)
    if scores is None:
        return _NOTHING
    width, slowdown = (scores.key_width + scores.value_width) / 2, ForwardBackward(1.0, 1.0)
    if scores.key_width == scores.value_width and setting.job.runtime.attention_backend != "flash":
        width, slowdown = width_of_kernel(width, setting.device)
    attention = attention_seconds(
        setting.sequences / setting.cp,
        model.seq_length,
        scores.heads / setting.tp,
        width,
        setting.device,
        setting.dtype,
        setting.kernels,
        causal=model.family.is_decoder_only,
        drops=model.attention_dropout > 0,
        parts=setting.cp,
    )
    attention = ForwardBackward(attention.forward * slowdown.forward, attention.backward * slowdown.backward)
    attention = attention_of_variant(setting, attention).plus(sink_gradient(setting, scores.heads))
    return Pass({"attention": attention.forward}, {"attention": attention.backward})


def _exchanged(setting: Setting, block: Branch) -> Pass:
    """What ranks bring each other between the matrices of a block."""
    exchange = add(_context_exchange(setting, block), _gathered(setting, block))
    return Pass(exchange, exchange)


def _routed(setting: Setting, block: Branch) -> Pass:
    """Tokens that a block routes to experts, brought to them, computed and brought back."""
    products, routers, casts, routed = NOTHING, NOTHING, NOTHING, setting.routed(block)
    if routed is None:
        return _NOTHING
    for each in block.parameters.matrices(setting.model):
        if each.routing is not None:
            products = products.plus(routed_seconds(setting, each, each.routing))
            casts = casts.plus(expert_casting_seconds(setting, each, each.routing))
        elif each.parallel == "replicated":
            router = gemm_seconds(setting.own_tokens, each.outputs, each.inputs, setting.device, setting.dtype)
            routers = routers.plus(ForwardBackward(router, 2 * router))
    products, moving = products.plus(routers), moving_seconds(setting, routed).plus(casts)
    sent = {"expert_parallel": dispatch_seconds(setting, routed)}
    return Pass(
        {"gemm": products.forward, "memory_bound": moving.forward, **sent},
        {"gemm": products.backward, "memory_bound": moving.backward, **sent},
    )


def _replicated(setting: Setting, block: Branch) -> Pass:
    """Matrices that tensor-parallel ranks have whole, for their own tokens; routers are counted with their experts."""
    products, gradients = NOTHING, 1 if setting.is_frozen else 2
    if setting.routed(block) is None:
        for each in block.parameters.matrices(setting.model):
            if each.parallel == "replicated":
                product = gemm_seconds(setting.own_tokens, each.outputs, each.inputs, setting.device, setting.dtype)
                products = products.plus(ForwardBackward(product, gradients * product))
    return Pass({"gemm": products.forward}, {"gemm": products.backward}) if products != NOTHING else _NOTHING


def _scan(setting: Setting, block: Branch) -> Pass:
    """Convolution, scan and norm, where a block has a scan."""
    scan = block.scan(setting.model)
    if scan is None:
        return _NOTHING
    found = _scan_by_kernels(setting, scan) if scan.chunked == NOTHING else _scan_by_operations(setting, scan)
    return Pass({"memory_bound": found.forward}, {"memory_bound": found.backward})


def _scan_by_kernels(setting: Setting, scan: Scan) -> ForwardBackward:
    """A convolution, the scan and a norm, one after another; kernels of the scan are far slower than what they move."""
    fitted, own = setting.device.fitted.state_space, setting.tokens / setting.tp
    computed = scan.flops * own / (fitted.scan_rate * peak(setting.device, setting.dtype))
    moved = NOTHING.plus(fitted.convolved, scan.convolved).plus(fitted.normed, scan.inner)
    if setting.sequences > 1:
        copied = ForwardBackward(
            fitted.copied.forward * (scan.projected + scan.inner), fitted.copied.backward * scan.projected
        )
        moved = moved.plus(copied)
    seconds = setting.streaming(own * setting.size)
    return ForwardBackward(computed, fitted.scan_backward * computed).plus(moved, seconds)


def _scan_by_operations(setting: Setting, scan: Scan) -> ForwardBackward:
    """The slower of moving and computing, and what operations on chunks move."""
    fitted, own = setting.device.fitted.linear_attention, setting.tokens / setting.tp
    each = NOTHING.plus(fitted.projected, scan.projected).plus(fitted.convolved, scan.convolved)
    each = each.plus(fitted.inner, scan.inner)
    computed = scan.flops * own / (fitted.scan_rate * peak(setting.device, setting.dtype))
    chunked = NOTHING.plus(scan.chunked, own * FP32 * fitted.chunked)
    moved = [setting.streaming(found * own * setting.size) for found in each]
    return ForwardBackward(
        max(moved[0], computed) + setting.streaming(chunked.forward),
        max(moved[1], fitted.scan_backward * computed) + setting.streaming(chunked.backward),
    )


def split(matrices: Iterable[Matrix], tp: int) -> list[Linear]:
    """Their parts on each of `tp` ranks."""
    return [Linear(*each.split(tp), each.parallel == "column") for each in matrices]


def linear_passes(setting: Setting, linears: Sequence[Linear], dtype: str, *, overlaps: bool = True) -> Pass:
    """Linear layers that multiply in a format, with what tensor parallelism sends around them. `overlaps`: whether they
    are among those that do, where the layers overlap.

    megatron-core hides the backward pass's gathering of a column-parallel layer's input behind the gradient of that
    input, and the summing of that gradient behind the gradient of the weight. All else is waited for, or goes with its
    product where the layers overlap. A frozen weight has no gradient, needs no input for it, and hides nothing.
    """
    group = group_of(setting.job, setting.device, setting.tp, 1)
    device, tokens = setting.device, setting.tokens
    overlaps = overlaps and setting.kernels.overlaps_tensor_parallel
    is_narrow = dtype in ELEMENT_BYTES
    in_pieces = overlaps and setting.kernels.sums_with_input_gradient
    forward = backward = sent_forward = sent_backward = 0.0
    for linear in linears:
        product = gemm_seconds(tokens, linear.outputs, linear.inputs, device, dtype)
        data = gemm_seconds(tokens, linear.inputs, linear.outputs, device, dtype)
        weight = 0.0 if setting.is_frozen else gemm_seconds(linear.outputs, linear.inputs, tokens, device, dtype)
        forward += product
        backward += data + weight
        whole = tokens * (linear.inputs if linear.is_column else linear.outputs) * setting.size
        if setting.sp:
            # What a product reads is gathered as it is multiplied; what it gives is summed in the dtype.
            read = group.gather_seconds(whole * ELEMENT_BYTES[dtype] / setting.size if is_narrow else whole)
            given = group.gather_seconds(whole)
            ahead, back = (read, given) if linear.is_column else (given, read)
            sent_forward += group.pipelined(ahead, product) if overlaps else ahead
            if linear.is_column and not setting.is_frozen:
                # What is read needs the link first, for as long as it takes.
                left = max(data - read, 0.0)
                summed = group.pipelined(given, left) if in_pieces else group.hidden(given, weight)
                sent_backward += group.hidden(read, data) + summed
            else:
                sent_backward += group.pipelined(back, data) if overlaps else back
        elif linear.is_column:
            sent_backward += group.hidden(group.reduce_seconds(whole), weight)
        else:
            sent_forward += group.reduce_seconds(whole)
    found = Pass(
        {"gemm": forward, "tensor_parallel": sent_forward}, {"gemm": backward, "tensor_parallel": sent_backward}
    )
    if not is_narrow:
        return found
    casts = casting_seconds(setting, linears)
    return Pass({**found.forward, "memory_bound": casts.forward}, {**found.backward, "memory_bound": casts.backward})


def _context_exchange(setting: Setting, block: Branch) -> Parts:
    """Context parallelism: every rank needs all keys and values, or all tokens of its heads; and their gradients come
    back the same way. Of what goes to one rank each, as much passes through a rank as if its own were gathered.
    """
    elements = setting.cp * block.exchanged(setting.model) + block.redistributed(setting.model, setting.tp, setting.cp)
    if setting.cp == 1 or not elements:
        return {}
    group = group_of(setting.job, setting.device, setting.cp, setting.tp)
    return {"context_parallel": group.gather_seconds(setting.tokens * elements / setting.tp * setting.size)}


def _gathered(setting: Setting, block: Branch) -> Parts:
    """What tensor-parallel ranks gather between the matrices of a block."""
    gathered = block.gathered(setting.model, setting.tp)
    if not gathered:
        return {}
    group = group_of(setting.job, setting.device, setting.tp, 1)
    return {"tensor_parallel": group.gather_seconds(setting.tokens * gathered * setting.size)}


def recomputed(setting: Setting, layer: Pass, layers: int, shares: Shares) -> Parts:
    """Seconds of doing again, in the backward pass, what `layers` layers of a model chunk did in the forward pass."""
    runtime = setting.job.runtime
    if runtime.recompute_granularity is None:
        return {}
    if runtime.recompute_granularity == "selective":
        return {"recompute": layers * _modules_again(setting, layer, shares)}
    return {"recompute": layers_again(setting, layers) * sum(layer.forward.values())}


def layers_again(setting: Setting, layers: int) -> int:
    """Of `layers` layers of a model chunk, those that are recomputed whole."""
    runtime = setting.job.runtime
    return layers if runtime.recompute_method != "block" else min(runtime.recompute_num_layers or 1, layers)


def _modules_again(setting: Setting, layer: Pass, shares: Shares) -> float:
    """Seconds of the forward passes of those modules of a layer that are recomputed. Of an MLP and of experts these are
    matrix products, and what brings tokens to them.
    """
    model, modules = setting.model, setting.job.runtime.recomputed_modules
    seconds = 0.0
    if "core_attn" in modules:
        exchanged = sum(_context_exchange(setting, model.attention).values())
        seconds += layer.forward.get("attention", 0.0) + attending(model, shares) * exchanged
    if "layernorm" in modules:
        norms = recomputed_norms(shares) * norm_accesses(setting).forward * setting.own_tokens * model.hidden_size
        seconds += setting.streaming(norms * setting.size)
    for block, share in shares.items():
        if block.recomputed_as in modules:
            products = linear_passes(setting, _linears(setting, (block,)), setting.products)
            routed = _routed(setting, block)
            seconds += share * (sum(products.forward.values()) + sum(routed.forward.values()))
    return seconds


def embedding_pass(setting: Setting) -> Pass:
    """Token embedding. Each tensor-parallel rank looks up its part of the table; the sum is shared out or kept."""
    seconds = embedding_seconds(setting)
    group = group_of(setting.job, setting.device, setting.tp, 1)
    whole = setting.tokens * setting.model.hidden_size * setting.size
    sent = group.gather_seconds(whole)
    backward = {"memory_bound": seconds.backward, "tensor_parallel": sent if setting.sp else 0.0}
    return Pass(
        {"memory_bound": seconds.forward, "tensor_parallel": sent if setting.sp else group.reduce_seconds(whole)},
        {} if setting.is_frozen else backward,
    )


def output_pass(setting: Setting) -> Pass:
    """Last norm, output layer and loss; nothing to speak of where the head of a task scores whole sequences."""
    if setting.job.has_task:
        return Pass({}, {})
    linear = Linear(setting.model.hidden_size, setting.padded_vocab / setting.tp, True)
    # It is megatron-core's own linear with any layers, and waits for what it reads.
    products = linear_passes(setting, [linear], setting.dtype, overlaps=False)
    loss = loss_seconds(setting)
    forward, backward = {"loss": loss.forward}, {"loss": loss.backward}
    if setting.job.runtime.fused_linear_cross_entropy:  # its backward pass computes the logits again
        backward["recompute"] = products.forward["gemm"]
        backward["memory_bound"] = _table_again(setting)
    if setting.model.family.is_masked_lm:  # the dense layer of its head, whole on every tensor-parallel rank
        h = setting.model.hidden_size
        product = gemm_seconds(setting.own_tokens, h, h, setting.device, setting.dtype)
        forward, backward = {**forward, "gemm": product}, {**backward, "gemm": 2 * product}
    return Pass(add(products.forward, forward), add(products.backward, backward))


_ADDED = 10
"""Bytes per parameter to add a gradient in bf16 to one in fp32: few tokens' product has no arithmetic to hide it."""


def _table_again(setting: Setting) -> float:
    """Adding the table's gradient to its sum for each chunk of a joined loss after the first."""
    if setting.is_frozen:
        return 0.0
    rows, tokens = int(setting.padded_vocab / setting.tp), int(setting.tokens)
    chunks = math.ceil(tokens / tokens_of_chunk(tokens, rows))
    return (chunks - 1) * setting.streaming(_ADDED * rows * setting.model.hidden_size)


def pipeline_group(setting: Setting) -> Group:
    """Two neighbouring stages, as one rank sends to its counterpart."""
    degrees = setting.job.parallelism
    stages = degrees.pipeline_model_parallel_size
    stride = setting.tp * setting.cp * setting.job.data_parallel_size
    return group_of(setting.job, setting.device, min(stages, 2), stride)
