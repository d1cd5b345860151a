"""Tensors whose memory comes and goes, while all that is known of them stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.ssm import mamba_block
from megatron.core.transformer import multi_token_prediction, transformer_block


def allocate(tensor: torch.Tensor) -> None:
    """Take memory for the tensor and all views of it; what is in it is undefined."""
    tensor.untyped_storage().resize_(tensor.nbytes)


def free(tensor: torch.Tensor) -> None:
    """Give it back. What uses it must have been waited for on the stream that the memory is used on next."""
    tensor.untyped_storage().resize_(0)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is memory for it now."""
    return tensor.untyped_storage().nbytes() >= tensor.nbytes


def is_alone_in_memory(tensor: torch.Tensor) -> bool:
    """Whether its memory is that of no other tensor, but for views of it."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


@contextmanager
def without_memory(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Inside, the weights of this format of each layer that megatron-core builds are moved to this device, and lose
    their memory: so there is no more than one layer of a rank in memory, which `FullyShardedDataParallel` fills.
    """
    builders = [vars(module) for module in (transformer_block, mamba_block, multi_token_prediction)]
    original = builders[0]["build_module"]

    def build(*arguments: Any, **options: Any) -> Any:
        built = original(*arguments, **options)
        if isinstance(built, torch.nn.Module):
            for weight in built.parameters():
                if weight.dtype == dtype and is_alone_in_memory(weight):
                    before = weight.detach()
                    weight.data = torch.empty_like(before, device=device)  # what has no memory cannot be moved later
                    free(weight)
                    free(before)
        return built

    for names in builders:
        names["build_module"] = build
    try:
        yield
    finally:
        for names in builders:
            names["build_module"] = original
