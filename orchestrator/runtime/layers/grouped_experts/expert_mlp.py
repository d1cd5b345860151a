"""A rank's experts in a few kernels of ours instead of Transformer Engine's modules: these take the host 1.3 ms for
each layer of 32 experts and forward pass, in which the GPU has nothing to do, as it has just waited for the router's
counts; and megatron-core adds biases expert by expert. In a job in FP8 they multiply in 16 bits, outside of everything
that FP8 needs: padded rows, copies of weights, scaling factors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from megatron.core.transformer.moe.experts import TEGroupedMLP

from orchestrator.kernel_selection.experts import LARGE_PRODUCT, LARGER_FOR_GRADIENTS, Gate, gate_of, joins_expert_mlp
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.weight_gradient import accumulate, nothing_to_add
from orchestrator.runtime.triton_kernels.loading import kernels
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS
from orchestrator.spec.sections.runtime import Layers


def join_expert_mlps(chunk: Any, job: JobSpec, config: LayerConfig, layers: Layers) -> None:
    """Give the experts of a built chunk these passes, unless the environment asks for Transformer Engine's."""
    if not _joins(job, config, layers):
        return
    for module in chunk.modules():
        if isinstance(module, TEGroupedMLP):
            join_expert_mlp(module, gate_of(job.model), has_biases=job.model.add_bias_linear)


def expert_products(job: JobSpec, config: LayerConfig, layers: Layers) -> str | None:
    """Format of routed experts' matrix products in a run: in FP8 that of these passes is the dtype. None without
    experts.
    """
    if not job.model.has_experts:
        return None
    return job.precision.dtype if _joins(job, config, layers) else job.precision.products


def _joins(job: JobSpec, config: LayerConfig, layers: Layers) -> bool:
    adds = config.gradient_accumulation_fusion and os.environ.get(GROUPED_PRODUCTS) != "0"
    return bool(adds) and joins_expert_mlp(job, layers)


class _Rows(NamedTuple):
    """Of a product."""

    tokens: list[int]
    """Of each expert."""
    large: int
    """Multiply-adds of an expert on average, from which on experts are multiplied one after the other."""


def join_expert_mlp(experts: Any, gate: Gate, *, has_biases: bool, large: int = LARGE_PRODUCT) -> None:
    """Give these passes to a TEGroupedMLP with this gate. Its linear layers are called as before: what comes before a
    call gathers their weights (megatron-core's `overlap_param_gather`).
    """
    first, second = experts.linear_fc1, experts.linear_fc2
    kinds = ("weight", "bias") if has_biases else ("weight",)
    _multiply_with(first, _GateAndUp, experts.num_local_experts, kinds)
    _multiply_with(second, _Down, experts.num_local_experts, kinds)
    for linear in (first, second):
        vars(linear)["set_extra_state"] = _ignore_extra_state

    def forward(
        hidden: torch.Tensor, tokens_per_expert: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Tokens [n, h], an expert's behind another's, the number of each on the host, and how the router weighted each
        token [n]; gives [n, h], and no bias.
        """
        rows = _Rows(tokens_per_expert.tolist(), large)
        return second(first(hidden, rows), weights, rows, gate), None

    vars(experts)["forward"] = forward


def _multiply_with(linear: Any, function: type[torch.autograd.Function], count: int, kinds: tuple[str, ...]) -> None:
    """Have a GroupedLinear of so many experts apply this function to its inputs and its parameters."""
    apply: Any = function.apply
    parameters: list[torch.Tensor] = []

    def forward(*inputs: Any) -> Any:
        if not parameters:  # not before they are the ones that are trained
            parameters.extend(getattr(linear, f"{kind}{index}") for kind in kinds for index in range(count))
        return apply(*inputs, *parameters)

    vars(linear)["forward"] = forward


def _ignore_extra_state(extra_state: Any) -> None:
    """Scaling factors of FP8 in a checkpoint. What is loaded would be saved again, though nothing has renewed it."""


class _GateAndUp(torch.autograd.Function):
    """[n, h] to gate and up, [n, 2f]. Parameters are all experts' matrices, and then all biases, if they have any."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, rows: _Rows, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.rows, ctx.parameters = rows, parameters
        matrices, biases = _split(parameters, rows)
        return _multiply(hidden, matrices, rows, transposed=True, biases=biases)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        of_gated = gradients[0].contiguous()
        matrices, biases = _split(ctx.parameters, ctx.rows)
        of_hidden = _multiply(of_gated, matrices, ctx.rows, transposed=False)
        _add_products(hidden, of_gated, matrices, ctx.rows)
        if biases:
            _biases().add_bias_gradients(of_gated, _buffers(biases), ctx.rows.tokens, adds=True)
        return of_hidden, None, *map(nothing_to_add, ctx.parameters)


class _Down(torch.autograd.Function):
    """[n, 2f] through the gate, weighted, to [n, h], with a bias that is weighted as well. Parameters as above."""

    @staticmethod
    def forward(
        ctx: Any, gated: torch.Tensor, weights: torch.Tensor, rows: _Rows, gate: Gate, *parameters: torch.Tensor
    ) -> torch.Tensor:
        activated = _activation().weighted_gate(gated, weights, gate)
        ctx.save_for_backward(gated, weights, activated)
        ctx.rows, ctx.gate, ctx.parameters = rows, gate, parameters
        matrices, biases = _split(parameters, rows)
        return _multiply(activated, matrices, rows, transposed=True, biases=biases, shares=weights)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gated, weights, activated = ctx.saved_tensors
        of_out = gradients[0].contiguous()
        matrices, biases = _split(ctx.parameters, ctx.rows)
        of_activated = _multiply(of_out, matrices, ctx.rows, transposed=False)
        _add_products(activated, of_out, matrices, ctx.rows)
        of_gated, of_weights = _activation().weighted_gate_gradient(of_activated, gated, weights, ctx.gate)
        if biases:
            _biases().add_bias_gradients(of_out, _buffers(biases), ctx.rows.tokens, adds=True, shares=weights)
            _biases().add_share_gradients(of_out, biases, ctx.rows.tokens, of_weights)
        del of_activated  # before there are gradients of matrices, of which autograd gets empty ones
        return of_gated, of_weights, None, None, *map(nothing_to_add, ctx.parameters)


def _multiply(
    inputs: torch.Tensor,
    matrices: Sequence[torch.Tensor],
    rows: _Rows,
    *,
    transposed: bool,
    biases: Sequence[torch.Tensor] = (),
    shares: torch.Tensor | None = None,
) -> torch.Tensor:
    """As the kernel of this name (grouped_products.py); of large experts by cuBLAS, for one after the other."""
    tokens = rows.tokens
    if not _are_large(matrices, rows, rows.large):
        shares = shares if biases else None
        found: torch.Tensor = _products().multiply(
            inputs, matrices, tokens, transposed=transposed, biases=biases, shares=shares
        )
        return found
    out = inputs.new_empty(inputs.size(0), matrices[0].size(0 if transposed else 1))
    parts = zip(torch.split(inputs, tokens), torch.split(out, tokens), strict=True)
    for index, (part, target) in enumerate(parts):
        matrix = matrices[index].t() if transposed else matrices[index]
        if biases and shares is None:
            torch.addmm(biases[index], part, matrix, out=target)
        else:
            torch.mm(part, matrix, out=target)
    if biases and shares is not None:
        _biases().add_biases(out, biases, tokens, shares)
    return out


def _add_products(inputs: torch.Tensor, of_output: torch.Tensor, matrices: Sequence[torch.Tensor], rows: _Rows) -> None:
    """Add the gradients of matrices to their buffers, as the kernel of this name; of large experts by cuBLAS."""
    tokens, buffers = rows.tokens, _buffers(matrices)
    if not _are_large(matrices, rows, LARGER_FOR_GRADIENTS * rows.large):
        _products().add_products(inputs, of_output, buffers, tokens, adds=True)
        return
    for part, of_part, buffer in zip(torch.split(inputs, tokens), torch.split(of_output, tokens), buffers, strict=True):
        if len(part):
            accumulate(part, of_part, buffer)


def _are_large(matrices: Sequence[torch.Tensor], rows: _Rows, least: int) -> bool:
    return sum(rows.tokens) * matrices[0].numel() >= least * len(rows.tokens)


def _split(parameters: Sequence[torch.Tensor], rows: _Rows) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """Of each expert its matrix, and its bias; no biases where there are none."""
    count = len(rows.tokens)
    return parameters[:count], parameters[count:]


def _buffers(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [vars(each)["main_grad"] for each in parameters]


def _products() -> Any:
    return kernels("grouped_products", "the products of experts")


def _activation() -> Any:
    return kernels("weighted_gate", "the activation of experts")


def _biases() -> Any:
    return kernels("expert_biases", "the biases of experts")
