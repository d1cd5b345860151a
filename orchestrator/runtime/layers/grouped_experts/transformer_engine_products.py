"""Matrix products of a rank's experts, as Transformer Engine's GroupedLinear asks for them: all in one kernel."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from orchestrator.kernel_selection.experts import adds_weight_gradients, multiplies_in_one_kernel
from orchestrator.runtime.triton_kernels.loading import kernels
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS
from orchestrator.spec.sections.runtime import Layers

_WEIGHT_GRADIENT = "NT"
"""The layout in which Transformer Engine asks for it: outputs' gradients by inputs."""
Multiply = Callable[..., Any]
"""Transformer Engine's `general_grouped_gemm`."""


def multiply_in_one_kernel(job: JobSpec, layers: Layers) -> None:
    """Have a rank's experts multiplied together, unless the environment says otherwise: outputs and the gradients of
    tokens by Transformer Engine's own kernel, which it asks for with every product, the gradients of weights by ours.
    """
    if not multiplies_in_one_kernel(job, layers) or os.environ.setdefault(GROUPED_PRODUCTS, "1") != "1":
        return
    module: Any = importlib.import_module("transformer_engine.pytorch.module.grouped_linear")
    original = getattr(module.general_grouped_gemm, "__wrapped__", module.general_grouped_gemm)
    spared = _spare_ranks_without_tokens(original)
    module.general_grouped_gemm = functools.wraps(original)(
        _add_weight_gradients(spared) if adds_weight_gradients(job) else spared
    )


def _spare_ranks_without_tokens(original: Multiply) -> Multiply:
    """Transformer Engine (up to 2.16) looks at the first product, and crashes where there is none: where no token came
    to any expert of a rank.
    """

    def multiply(*arguments: Any, **options: Any) -> Any:
        if any(options.get("m_splits", [True])):
            return original(*arguments, **options)
        os.environ[GROUPED_PRODUCTS] = "0"
        try:
            return original(*arguments, **options)
        finally:
            os.environ[GROUPED_PRODUCTS] = "1"

    return multiply


def _add_weight_gradients(original: Multiply) -> Multiply:
    """Transformer Engine's kernel takes sums of one length only, those of weight gradients are as long as an expert has
    tokens: by itself it calls cuBLAS for each expert.
    """
    add_products = kernels("grouped_products", "the weight gradient of experts").add_products
    add_bias_gradients = kernels("expert_biases", "the gradient of experts' biases").add_bias_gradients

    def multiply(inputs: Sequence[Any], others: Sequence[Any], out: Sequence[Any], *more: Any, **options: Any) -> Any:
        if options.get("layout") != _WEIGHT_GRADIENT or not all(map(_is_plain, (inputs[0], others[0]))):
            return original(inputs, others, out, *more, **options)
        tokens, of_output = options["m_splits"], _joined(others)
        add_products(_joined(inputs), of_output, out, tokens, adds=options.get("accumulate", False))
        of_biases: list[Any] = [None] * len(out)
        if options.get("use_bias"):
            of_biases = list(of_output.new_empty(len(out), of_output.size(1), dtype=torch.float32).unbind())
            add_bias_gradients(of_output, of_biases, tokens, adds=False)
        return out, of_biases, None

    return multiply


def _is_plain(tensor: Any) -> bool:
    """Not quantized."""
    return type(tensor) is torch.Tensor


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """[n, width]: the tensor of which these are the rows, one after another (`torch.split`); a copy where they are not
    any more, as after their way to the host and back.
    """
    first, width = parts[0], parts[0].size(1)
    rows = [0, *accumulate(each.size(0) for each in parts)]
    places = [first.storage_offset() + width * row for row in rows[:-1]]
    same_storage = first.untyped_storage().data_ptr() == parts[-1].untyped_storage().data_ptr()
    if same_storage and [each.storage_offset() for each in parts] == places:
        return first.as_strided((rows[-1], width), (width, 1))
    return torch.cat(list(parts))
