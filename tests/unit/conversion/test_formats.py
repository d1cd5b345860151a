"""A number that a format cannot hold never becomes infinite unsaid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.refused import refused

from orchestrator.conversion.hugging_face.families.llama import LLAMA
from orchestrator.conversion.hugging_face.hf_export import Source
from orchestrator.spec.model import ModelSpec


class Stored:
    """A checkpoint whose tensors are all this one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        return self._tensor


@pytest.mark.parametrize(("number", "holds"), [(65504.0, True), (70000.0, False), (float("inf"), True)])
def test_fp16(number: float, holds: bool) -> None:
    model = ModelSpec(num_layers=1, hidden_size=4, num_attention_heads=1, seq_length=4)
    stored: Any = Stored(torch.tensor([[1.0, number]]))
    source = Source(stored, model, LLAMA, 1, torch.float16)
    weight = next(LLAMA.weights(model))
    if not holds:
        with refused("too_large_for_fp16", "embed_tokens.weight"):
            list(source.tensors(weight))
        return
    [tensor] = source.tensors(weight)
    assert tensor.tolist() == [[1.0, number]]
