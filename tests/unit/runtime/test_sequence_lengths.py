"""The lengths of a batch's samples, counted once for the layers of an encoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.engine_layers import transformer_engine_layers

from orchestrator.runtime.layers.attention.padded_lengths import Lengths


def hidden_behind(*lengths: int) -> torch.Tensor:
    """A mask [b, 1, 1, 8] of samples that are as long."""
    return (torch.arange(8) >= torch.tensor(lengths)[:, None])[:, None, None, :]


def test_ends_of_samples() -> None:
    ends = Lengths().ends(hidden_behind(3, 8, 0))
    assert (ends.tolist(), ends.dtype) == ([0, 3, 11, 11], torch.int32)


def test_a_mask_is_counted_once_and_another_one_anew() -> None:
    lengths, mask = Lengths(), hidden_behind(3, 8)
    assert lengths.ends(mask) is lengths.ends(mask)
    assert lengths.ends(hidden_behind(4, 8)).tolist() == [0, 4, 12]
    assert lengths.ends(mask).tolist() == [0, 3, 11]


def test_layers_of_a_chunk_hand_the_same_ones_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = transformer_engine_layers(monkeypatch).encoder_attention()
    layers, mask = [spec.module(**spec.params) for _ in range(2)], hidden_behind(3, 8)
    called: list[Any] = [layer(1, 2, 3, mask, attn_mask_type="padding", packed_seq_params=None) for layer in layers]
    first, second = (named.pop("packed_seq_params") for _, named in called)
    assert called == [((1, 2, 3, mask), {"attn_mask_type": "padding"})] * 2
    assert first.cu_seqlens_q is first.cu_seqlens_kv is second.cu_seqlens_q
    assert (first.qkv_format, first.cu_seqlens_q.tolist()) == ("sbhd", [0, 3, 11])
