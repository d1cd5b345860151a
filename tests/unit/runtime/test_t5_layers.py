"""The bias by distance is that of transformers' T5, and hidden keys and later positions are not attended to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch
from megatron.core.transformer.enums import AttnMaskType
from transformers.models.t5.modeling_t5 import T5Attention

from orchestrator.runtime.layers.t5_layers import MaskedAttention, RelativeBias

HEADS = 4


def config() -> Any:
    """What the layers read of megatron-core's configuration."""
    return SimpleNamespace(
        num_attention_heads=HEADS,
        kv_channels=8,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        sequence_parallel=False,
        softmax_type="vanilla",
    )


def bias(*, bidirectional: bool, buckets: int = 32, most: int = 128) -> RelativeBias:
    alone: Any = SimpleNamespace(size=lambda: 1)
    made = RelativeBias(
        config(), bidirectional=bidirectional, buckets=buckets, max_distance=most, stage=0, tp_group=alone
    )
    torch.nn.init.normal_(made.weight, generator=torch.Generator().manual_seed(1))
    return made


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (32, 17)])
def test_buckets_are_those_of_transformers(bidirectional: bool, buckets: int, most: int) -> None:
    distances = torch.arange(-300, 300)
    ours = bias(bidirectional=bidirectional, buckets=buckets, most=most).bucket(distances)
    theirs = T5Attention._relative_position_bucket(distances, bidirectional, buckets, most)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_bias_of_each_pair(bidirectional: bool) -> None:
    made = bias(bidirectional=bidirectional)
    sq, sk = 5, 9
    expected = torch.empty(1, HEADS, sq, sk)
    for query in range(sq):
        for key in range(sk):
            expected[0, :, query, key] = made.weight[made.bucket(torch.tensor(key - query))]
    assert torch.equal(made(sq, sk), expected)


def attend(attention: MaskedAttention, value: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    query, key = (torch.randn(6, 2, HEADS, 8, generator=generator) for _ in range(2))
    out: torch.Tensor = attention(query, key, value, hidden)
    return out


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_what_is_not_seen_changes_nothing(relative: bool, causal: bool) -> None:
    kind = AttnMaskType.causal if causal else AttnMaskType.arbitrary
    attention = MaskedAttention(config(), 1, kind, "self")
    attention.bias = bias(bidirectional=not causal).forward if relative else None
    hidden = None if causal else (torch.arange(6) >= 4).expand(2, 1, 1, 6)
    value = torch.randn(6, 2, HEADS, 8, generator=torch.Generator().manual_seed(3))
    other = value.clone()
    other[4:] += 7
    before, after = attend(attention, value, hidden), attend(attention, other, hidden)
    seen = slice(0, 4) if causal else slice(0, 6)
    assert torch.equal(before[seen], after[seen])
    assert torch.equal(before, after) is not causal
