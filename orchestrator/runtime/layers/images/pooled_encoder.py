"""Images as embeddings of a decoder: SigLIP's vision transformer (Zhai et al. 2023), and behind it means of patches, a
norm and a matrix (Gemma Team 2025, "Gemma 3 Technical Report", section 2.1).

Tensor parallelism splits the layers of the transformer; what stands before and behind them is whole on every rank.
"""

from __future__ import annotations

import copy
from math import isqrt

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn import functional

from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.images.encoder import config_of_encoder, encoder_block
from orchestrator.runtime.layers.images.patches import cut, scaled
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.spec.sections.runtime import Layers
from orchestrator.spec.vision import VisionSpec


class PooledImageEncoder(MegatronModule):
    """From images to the embeddings that stand for squares of their patches."""

    def __init__(self, vision: VisionSpec, config: LayerConfig, layers: Layers) -> None:
        """`config` is the decoder's."""
        own = config_of_encoder(vision, config)
        super().__init__(config=own)
        width, side = vision.hidden_size, vision.patch_size
        self.vision = vision
        self.patches = torch.nn.Parameter(torch.empty(width, 3, side, side))
        self.patch_bias = torch.nn.Parameter(torch.empty(width))
        self.positions = torch.nn.Parameter(torch.empty(vision.positions, width))
        self.block = encoder_block(own, layers)
        self.output_norm = Norm(own, width, vision.norm_epsilon)
        if vision.freeze:
            self.requires_grad_(False)
        self.projector = PooledProjector(vision, own, config.hidden_size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """images: [b, n, 3, size, size], uint8. Returns [n · tokens of an image, b, h], of the decoder's h."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.vision.freeze):
            encoded = self._encode(images.flatten(0, 1))
        projected = self.projector(encoded)  # [tokens, b · n, h]
        by_image = projected.view(projected.size(0), *images.shape[:2], -1)
        embeddings: torch.Tensor = by_image.permute(2, 0, 1, 3).flatten(0, 1)
        return embeddings

    def _encode(self, images: torch.Tensor) -> torch.Tensor:
        """images: [n, 3, size, size]; what the norm behind the last layer gives, [patches, n, width]."""
        pixels = cut(scaled(images, self.vision, self.patches.dtype), self.vision.patch_size)
        embedded = functional.linear(pixels, self.patches.flatten(1), self.patch_bias) + self.positions.unsqueeze(1)
        encoded: torch.Tensor = self.output_norm(self.block(hidden_states=embedded, attention_mask=None))
        return encoded


class PooledProjector(torch.nn.Module):
    """The mean of each square of patches, a norm that multiplies by 1 + weight, and a matrix without a bias."""

    def __init__(self, vision: VisionSpec, config: LayerConfig, hidden: int) -> None:
        """`config` is the encoder's; `hidden` the decoder's width."""
        super().__init__()
        assert vision.pooled_tokens is not None, "a rule asks for it"
        own = copy.copy(config)
        own.normalization, own.layernorm_zero_centered_gamma = "RMSNorm", True
        self.per_side = isqrt(vision.pooled_tokens)
        self.square = vision.image_size // vision.patch_size // self.per_side
        self.norm = Norm(own, vision.hidden_size, vision.norm_epsilon)
        self.linear = torch.nn.Linear(vision.hidden_size, hidden, bias=False, dtype=config.params_dtype)

    def forward(self, encoded: torch.Tensor) -> torch.Tensor:
        """encoded: [patches, n, width], row by row of an image. Returns [tokens, n, h], row by row as well."""
        side, square = self.per_side, self.square
        squares = encoded.view(side, square, side, square, *encoded.shape[1:])
        projected: torch.Tensor = self.linear(self.norm(squares.mean(dim=(1, 3)).flatten(0, 1)))
        return projected
