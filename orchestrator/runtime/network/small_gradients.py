"""Gradients of biases and norms, added to their buffers a hundred at a time.

megatron-core adds each by itself: to a GPU a few thousand numbers are no work, and what it takes is the start of a
kernel, of which a layer of a BERT has eight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def add_together(chunks: list[Any]) -> None:
    """Add such gradients of a backward pass at its end, as the same sums. `chunks`: wrapped in data parallelism that
    reduces nothing before that.
    """
    waiting = _Waiting()
    for chunk in chunks:
        for parameter in chunk.parameters():
            if parameter.requires_grad and parameter.dim() == 1:
                parameter.register_post_accumulate_grad_hook(waiting.take)


class _Waiting:
    def __init__(self) -> None:
        self._gradients: dict[Any, torch.Tensor] = {}  # by parameters with the attributes that megatron-core gives

    def take(self, parameter: Any) -> None:
        """Autograd calls it before megatron-core's hook, which then finds nothing to add."""
        if parameter.grad is None or parameter.grad_added_to_main_grad or getattr(parameter, "zero_out_wgrad", False):
            return
        if parameter in self._gradients:  # a layer that is recomputed has a backward pass inside the pass
            self._add()
        if not self._gradients:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._add)
        self._gradients[parameter], parameter.grad = parameter.grad, None

    def _add(self) -> None:
        waited, self._gradients = self._gradients, {}
        for buffers, gradients in _alike(waited):
            torch._foreach_add_(buffers, gradients)


def _alike(waited: dict[Any, torch.Tensor]) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Buffers and what is to be added to them, of one dtype: what the kernel for many takes."""
    groups: dict[tuple[torch.dtype, torch.dtype], list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for parameter, gradient in waited.items():
        buffer: torch.Tensor = parameter.main_grad
        groups.setdefault((buffer.dtype, gradient.dtype), []).append((buffer, gradient))
    for (dtype, given), pairs in groups.items():
        buffers, gradients = [buffer for buffer, _ in pairs], [gradient for _, gradient in pairs]
        if given != dtype:
            together = torch.cat(gradients).to(dtype)
            gradients = list(torch.split(together, [gradient.numel() for gradient in gradients]))
        yield buffers, gradients
