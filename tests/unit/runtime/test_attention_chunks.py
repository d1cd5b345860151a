"""Attention in chunks: every chunk of a sequence as a sequence of its own, in layers that rotate alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch
from megatron.core.transformer.enums import AttnMaskType
from support.engine_layers import transformer_engine_layers
from transformers.masking_utils import causal_mask_function, chunked_overlay

from orchestrator.runtime.layers.torch_layers import Attention

CHUNK, LENGTH = 5, 13


def config(chunk: int | None) -> Any:
    return SimpleNamespace(
        **{"num_attention_heads": 4, "kv_channels": 8, "attention_dropout": 0.0, "softmax_type": "vanilla"},
        **{"attention_logit_softcapping": None, "packs": False, "masks_images": False, "alibi": False},
        **{"window_of": lambda number: None, "chunk_of": lambda number: chunk},
    )


@pytest.mark.parametrize("chunk", [CHUNK, LENGTH, None])
def test_a_token_sees_its_chunk_up_to_itself(chunk: int | None) -> None:
    attention = Attention(config(chunk), 1, AttnMaskType.causal, "self")
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(LENGTH, 2, 4, 8, generator=generator)
    key, value = (torch.randn(LENGTH, 2, 2, 8, generator=generator) for _ in range(2))
    out = attention(query, key, value, None).view(LENGTH, 2, 4, 8)
    places = torch.arange(LENGTH)
    seen = causal_mask_function(0, 0, places[:, None], places)
    if chunk is not None:
        seen &= chunked_overlay(chunk, torch.zeros(1, dtype=torch.int64))(0, 0, places[:, None], places)
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key.repeat_interleave(2, dim=2)) / 8**0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    expected = torch.einsum("bhqk,kbhd->qbhd", weights, value.repeat_interleave(2, dim=2))
    torch.testing.assert_close(out, expected)


class Engine(torch.nn.Module):
    """In place of Transformer Engine's attention: it says how much it was given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: None) -> torch.Tensor:
        assert len(query) == len(key) == len(value)
        return torch.full((len(query), 1), len(query))


def test_transformer_engines_is_handed_chunk_after_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    module = transformer_engine_layers(monkeypatch, attention=Engine)
    given = torch.zeros(LENGTH, 1, 1, 1)
    chunked, whole = (module.AttentionInChunks(config(chunk), 1) for chunk in (CHUNK, None))
    assert chunked(given, given, given, None).flatten().tolist() == [5] * 10 + [3] * 3
    assert whole(given, given, given, None).flatten().tolist() == [LENGTH] * LENGTH
