"""Matrix products in FP8 and FP4: whether this process can do them, what of them an evaluation must leave as it is, and
which micro-batches of captured passes make the weights' FP8 anew.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from orchestrator.errors import MissingDependency, UserError
from orchestrator.runtime.layers.transformer_engine.availability import absence
from orchestrator.spec.sections.precision import PrecisionSpec
from orchestrator.spec.sections.quantization import Fp4Spec, Fp8Spec
from orchestrator.spec.sections.runtime import Layers

_CHECKS = {
    "delayed": "is_fp8_available",
    "tensorwise": "is_fp8_available",
    "blockwise": "is_fp8_block_scaling_available",
    "mxfp8": "is_mxfp8_available",
    "nvfp4": "is_nvfp4_available",
}
"""By recipe, what is asked of Transformer Engine."""
_MICROSCALING = 10
"""Major compute capability of GPUs that multiply microscaled blocks in every order that a training needs. Transformer
Engine lets NVFP4 pass on 12.x, where its Hadamard transform fails."""


def require_products(precision: PrecisionSpec, layers: Layers) -> None:
    """Raises MissingDependency where Transformer Engine's layers are not used, UserError where this GPU or its software
    cannot multiply in FP8 or FP4 as the recipe says. Nothing to do for a job without either.
    """
    narrow = precision.quantization
    if narrow is None:
        return
    path = f"precision.{narrow.field}"
    if layers != "transformer_engine":
        raise MissingDependency(
            f"{path} needs Transformer Engine's layers, and this run has torch's: {absence()}; "
            f"leave {path} out to train in bf16"
        )
    if narrow.is_microscaled:
        _require_microscaling(path, narrow)
    manager: Any = importlib.import_module("transformer_engine.pytorch.fp8").FP8GlobalStateManager
    check = getattr(manager, _CHECKS[narrow.recipe], None)
    able, reason = check() if check is not None else (False, "this version of Transformer Engine is too old")
    if not able:
        raise UserError(
            f"{path} with recipe: {narrow.recipe} cannot run here: {reason.rstrip('.')}; "
            f"use another GPU or recipe, or leave out {path} to train in bf16",
            code="unavailable_fp8_recipe",
        )


def _require_microscaling(path: str, narrow: Fp8Spec | Fp4Spec) -> None:
    major, minor = torch.cuda.get_device_capability()
    if major != _MICROSCALING:
        raise UserError(
            f"{path} with recipe: {narrow.recipe} needs a GPU of compute capability 10.x (B200, GB200, B300), and this "
            f"one has {major}.{minor}; use such a GPU, fp8 with another recipe, or leave out {path} to train in bf16",
            code="gpu_without_microscaling",
        )


def quantization_settings(precision: PrecisionSpec, layers: Layers) -> dict[str, Any]:
    """What TransformerConfig takes about FP8 and FP4; nothing for a job without either, and for torch's layers, which
    generate text in bf16 from any checkpoint.
    """
    narrow, fp8 = precision.quantization, precision.fp8
    if narrow is None or layers != "transformer_engine":
        return {}
    start, end = narrow.ends_in_bf16
    ends = {
        "first_last_layers_bf16": bool(start or end),
        "num_layers_at_start_in_bf16": start,
        "num_layers_at_end_in_bf16": end,
    }
    if fp8 is None:
        return {"fp4": "e2m1", "fp4_recipe": narrow.recipe, **ends}
    return {
        "fp8": fp8.chosen_format,
        "fp8_recipe": fp8.recipe,
        "fp8_margin": fp8.margin,
        "fp8_amax_history_len": fp8.amax_history_len,
        "fp8_amax_compute_algo": fp8.amax_compute_algo,
        **ends,
    }


@contextlib.contextmanager
def largest_values_kept(chunks: Iterable[Any]) -> Iterator[None]:
    """Leave delayed scaling as it was: a forward pass writes the largest values that it sees into the same place,
    with gradients or without, and the next training step would take them for its own.
    """
    modules = [module for chunk in chunks for module in chunk.modules() if hasattr(module, "fp8_meta")]
    before = {id(module): values.clone() for module in modules if (values := _largest_values(module)) is not None}
    try:
        yield
    finally:
        for module in modules:
            values = _largest_values(module)
            if values is not None:
                # Before its first forward pass a module does not have them.
                values.copy_(before[id(module)]) if id(module) in before else values.zero_()


class QuantizedWeights:
    """Transformer Engine makes a weight's FP8 in the first micro-batch of a step and keeps it for the others. Which one
    that is, megatron-core's schedule says, and it takes each captured micro-batch for the first.
    """

    def __init__(self, chunk: Any) -> None:
        """`chunk`: wrapped in data parallelism. Takes the place of what the schedule says it to."""
        self._chunk, self._is_first = chunk, True
        self._make_anew = chunk.set_is_first_microbatch
        self._manager: Any = importlib.import_module("transformer_engine.pytorch.fp8").FP8GlobalStateManager
        chunk.set_is_first_microbatch = self._set_is_first_microbatch

    @contextlib.contextmanager
    def micro_batch(self, *, is_first: bool) -> Iterator[None]:
        """Around one of a step; outside, as in an evaluation, the schedule is believed."""
        self._is_first = is_first
        # In a graph the host is not asked: this is a number on the GPU.
        self._manager.set_skip_fp8_weight_update_tensor(not is_first)
        try:
            yield
        finally:
            self._is_first = True

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside, weights have FP8 of their own: without gradients Transformer Engine keeps them in one order alone,
        and would let go of what a graph reads and writes.
        """
        modules = [module for module in self._chunk.modules() if hasattr(module, "_fp8_workspaces")]
        kept = [module._fp8_workspaces for module in modules]
        for module in modules:
            module._fp8_workspaces = {}
        try:
            yield
        finally:
            for module, workspaces in zip(modules, kept, strict=True):
                module._fp8_workspaces = workspaces

    def _set_is_first_microbatch(self) -> None:
        if self._is_first:
            self._make_anew()


def _largest_values(module: Any) -> torch.Tensor | None:
    """The row that is being written of a module's history of delayed scaling; None where there is no such history."""
    history = getattr(module.fp8_meta.get("scaling_fwd"), "amax_history", None)
    return None if history is None else history[0]
