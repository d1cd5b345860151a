"""The encoder of images of any size takes the memory of the patches that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from megatron.core.transformer.enums import AttnMaskType
from support.engine_layers import have_layers
from support.matrix import FAMILIES
from support.training import tiny_job
from torch.nn import functional

from orchestrator.runtime.layers import torch_layers
from orchestrator.runtime.layers.attention.rotation import RotatedAttention
from orchestrator.runtime.layers.images.aligned_linear import AlignedRowParallelLinear
from orchestrator.runtime.layers.images.encoder import block_spec_of_encoder
from orchestrator.runtime.layers.images.native_encoder import config_of_native_encoder
from orchestrator.runtime.layers.images.segment_attention import SegmentAttention, groups_of_segments
from orchestrator.runtime.network.model import transformer_config
from orchestrator.runtime.processes.device import Device

CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


@pytest.mark.slow("builds an encoder in a process of its own")
def test_small_images_are_not_filled_up_to_a_large_one(run_ranks: Callable[[str, int], list[Any]]) -> None:
    """The widest layer of the encoder gives 128 numbers for each patch."""
    [found] = run_ranks("images-of-any-size", 1)
    assert found["numbers per patch"] <= 128
    assert found["embeddings"] < 1e-5 * found["spread"]
    assert found["gradients"] < 1e-5


@pytest.mark.parametrize(
    "lengths", [[5], [64, 64, 16, 64, 4], [1024, *[4] * 100], [*range(1, 65)], [2**number for number in range(12)]]
)
def test_segments_of_like_length_are_together(lengths: list[int]) -> None:
    groups = groups_of_segments(lengths)
    numbers = [row[row >= 0].tolist() for group in groups for row in group]
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    assert sorted(numbers) == [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
    assert sum(group.numel() for group in groups) <= 2 * sum(lengths)
    assert len(groups) <= max(lengths).bit_length()


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize("lengths", [[4, 4, 4], [5], [4, 2, 6], [2, 40, 3, 2]])
def test_segments_see_themselves_alone(lengths: list[int]) -> None:
    """As with a mask of all pairs, whether they are of one length or not; values and gradients."""
    attention = SegmentAttention(
        transformer_config(tiny_job("segments"), CPU, "torch"), 1, AttnMaskType.no_mask, "self"
    )
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    mixed = torch.randn(len(numbers), 1, 2, 3 * 8, requires_grad=True)
    query, key, value = mixed.split(8, dim=-1)
    found = attention(query, key, value, torch.tensor(lengths))
    q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
    wanted = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=numbers[:, None] == numbers, scale=attention.scale
    )
    wanted = wanted.permute(2, 0, 1, 3).flatten(2)
    gradient = torch.randn_like(wanted)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(each, mixed, gradient)[0] for each in (found, wanted))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")  # megatron-core's, of its own default
@pytest.mark.parametrize(("ffn", "is_filled_up"), [(68, True), (72, False)])
@pytest.mark.parametrize(
    ("device", "is_rotated"), [(CPU, False), (Device("cuda", torch.device("cpu"), "nccl", "a GPU in name only"), True)]
)
def test_what_its_layers_are(
    ffn: int, is_filled_up: bool, device: Device, is_rotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_layers(monkeypatch, torch_layers, [False, False])
    model = dict(FAMILIES["native"])
    model["vision"] = {**model["vision"], "ffn_hidden_size": ffn}
    job = tiny_job("layers", model=model, runtime={"device": "auto"}, precision={"dtype": "bf16"})
    config = transformer_config(job, device, "torch")
    own = config_of_native_encoder(job.model.image_encoder, config)
    for layer in block_spec_of_encoder(own, "torch", SegmentAttention).layer_specs:
        assert (layer.submodules.self_attention.module is RotatedAttention) == is_rotated
        assert (layer.submodules.mlp.submodules.linear_fc2 is AlignedRowParallelLinear) == is_filled_up
