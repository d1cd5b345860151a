"""A rank's experts in five kernels of ours instead of Transformer Engine's modules: these take the host 1.3 ms for each
layer of 32 experts and forward pass, in which the GPU has nothing to do, as it has just waited for the router's counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.experts import TEGroupedMLP

from orchestrator.kernel_selection.experts import GROUPED_PRODUCTS, joins_expert_mlp
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.weight_gradient import nothing_to_add
from orchestrator.runtime.triton_kernels.loading import kernels
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


def join_expert_mlps(chunk: Any, job: JobSpec, config: LayerConfig, layers: Layers) -> None:
    """Give the experts of a built chunk these passes, unless the environment asks for Transformer Engine's."""
    adds = config.gradient_accumulation_fusion and os.environ.get(GROUPED_PRODUCTS) != "0"
    if not adds or not joins_expert_mlp(job, layers):
        return
    for module in chunk.modules():
        if isinstance(module, TEGroupedMLP):
            vars(module)["forward"] = ExpertMLP(module)


class ExpertMLP:
    """The forward pass of a TEGroupedMLP with SwiGLU and without biases."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._weights: list[tuple[torch.Tensor, ...]] = []

    def __call__(
        self, hidden: torch.Tensor, tokens_per_expert: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Tokens [n, h], an expert's behind another's, the number of each on the host, and how the router weighted each
        token [n]; gives [n, h], and no bias.
        """
        if not self._weights:  # not before the parameters are the ones that are trained
            count = self._module.num_local_experts
            for linear in (self._module.linear_fc1, self._module.linear_fc2):
                self._weights.append(tuple(getattr(linear, f"weight{index}") for index in range(count)))
        tokens = tokens_per_expert.tolist()
        gate_and_up: Any = _GateAndUp.apply
        down: Any = _Down.apply
        return down(gate_and_up(hidden, tokens, *self._weights[0]), weights, tokens, *self._weights[1]), None


class _GateAndUp(torch.autograd.Function):
    """[n, h] to gate and up, [n, 2f]."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, tokens: list[int], *matrices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.tokens, ctx.matrices = tokens, matrices
        gated: torch.Tensor = _products().multiply(hidden, matrices, tokens, transposed=True)
        return gated

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        of_gated = gradients[0].contiguous()
        of_hidden = _products().multiply(of_gated, ctx.matrices, ctx.tokens, transposed=False)
        return of_hidden, None, *_add_weight_gradients(hidden, of_gated, ctx.matrices, ctx.tokens)


class _Down(torch.autograd.Function):
    """[n, 2f] through SwiGLU, weighted, to [n, h]."""

    @staticmethod
    def forward(
        ctx: Any, gated: torch.Tensor, weights: torch.Tensor, tokens: list[int], *matrices: torch.Tensor
    ) -> torch.Tensor:
        activated = _activation().weighted_swiglu(gated, weights)
        ctx.save_for_backward(gated, weights, activated)
        ctx.tokens, ctx.matrices = tokens, matrices
        output: torch.Tensor = _products().multiply(activated, matrices, tokens, transposed=True)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gated, weights, activated = ctx.saved_tensors
        of_out = gradients[0].contiguous()
        of_activated = _products().multiply(of_out, ctx.matrices, ctx.tokens, transposed=False)
        of_matrices = _add_weight_gradients(activated, of_out, ctx.matrices, ctx.tokens)
        of_gated, of_weights = _activation().weighted_swiglu_gradient(of_activated, gated, weights)
        return of_gated, of_weights, None, *of_matrices


def _add_weight_gradients(
    inputs: torch.Tensor, of_output: torch.Tensor, matrices: Sequence[torch.Tensor], tokens: list[int]
) -> list[torch.Tensor]:
    buffers = [vars(matrix)["main_grad"] for matrix in matrices]
    _products().add_products(inputs, of_output, buffers, tokens, adds=True, with_bias=False)
    return [nothing_to_add(matrix) for matrix in matrices]


def _products() -> Any:
    return kernels("grouped_products", "the products of experts")


def _activation() -> Any:
    return kernels("weighted_swiglu", "the activation of experts")
