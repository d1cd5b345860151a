"""Masks of images and the projector of pooled patches, held against transformers'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig
from transformers.models.gemma3.modeling_gemma3 import (
    Gemma3MultiModalProjector,
    create_masks_for_vision_model,
    get_block_sequence_ids_for_mask,
)

from orchestrator.runtime.layers.images.masks import image_masks
from orchestrator.runtime.layers.images.pooled_encoder import PooledProjector
from orchestrator.spec.vision import VisionSpec

LENGTH = 12
IMAGES = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0], [0] * LENGTH, [1] * 5 + [0] * 3 + [1] * 4])


@pytest.mark.parametrize("window", [2, 4, LENGTH])
def test_masks_are_those_of_transformers(window: int) -> None:
    """An image at the end, one at the beginning, a row without any; windows shorter than an image and longer."""
    config = Gemma3TextConfig(sliding_window=window, num_hidden_layers=6)
    config._attn_implementation = "eager"
    theirs: Any = create_masks_for_vision_model(
        config=config,
        inputs_embeds=torch.zeros(3, LENGTH, 4),
        attention_mask=None,
        past_key_values=None,
        position_ids=None,
        block_sequence_ids=get_block_sequence_ids_for_mask(IMAGES),
    )
    ours = image_masks(IMAGES, window, torch.float32)
    assert ours.shape == (1 if window == LENGTH else 2, 3, 1, LENGTH, LENGTH)
    for mask, kind in ((ours[0], "full_attention"), (ours[-1], "sliding_attention")):
        assert torch.equal(mask == 0, theirs[kind] == 0), kind
        assert torch.isinf(mask[mask != 0]).all()


def test_the_projector_is_that_of_transformers() -> None:
    torch.manual_seed(1)
    vision = VisionSpec(type="gemma3", image_size=16, patch_size=2, pooled_tokens=4, hidden_size=24, norm_epsilon=1e-6)
    config: Any = SimpleNamespace(params_dtype=torch.float32, sequence_parallel=False)
    ours = PooledProjector(vision, config, 40)
    sizes = {"image_size": 16, "patch_size": 2, "hidden_size": 24, "layer_norm_eps": vision.norm_epsilon}
    theirs = Gemma3MultiModalProjector(
        Gemma3Config(
            text_config=Gemma3TextConfig(hidden_size=40),
            vision_config=SiglipVisionConfig(**sizes),
            mm_tokens_per_image=4,
        )
    )
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_()
        ours.norm.weight.copy_(theirs.mm_soft_emb_norm.weight)
        ours.linear.weight.copy_(theirs.mm_input_projection_weight.t())
        encoded = torch.randn(3, 64, 24)
        torch.testing.assert_close(ours(encoded.transpose(0, 1)).transpose(0, 1), theirs(encoded), rtol=1e-5, atol=1e-5)
