"""The training step of a decoder that sees images of any size."""

from __future__ import annotations

import torch

from orchestrator.runtime.steps.base import Batch
from orchestrator.runtime.steps.vision import NextTokenAfterImages


class NextTokenAfterImagesOfAnySize(NextTokenAfterImages):
    """Cross entropy of the next token over the tokens that `loss_mask` counts."""

    on_host = ("grids",)
    image_inputs = (*NextTokenAfterImages.image_inputs, "grids")

    def get_batch(self, samples: Batch) -> Batch:
        """As that of images of one size, but for `images` [b, numbers] and `grids` [b, n, 2] (int64, on
        the host), as `NativeEncoder` takes them.
        """
        batch = super().get_batch(samples)
        if "grids" in samples:
            return {**batch, "grids": samples["grids"]}
        images = batch["images"]
        return {**batch, "images": images.flatten(1), "grids": self._largest(images)}

    def _largest(self, images: torch.Tensor) -> torch.Tensor:
        """Of random tokens: images are squares of the largest size."""
        side = self.vision.image_size // self.vision.patch_size
        return torch.full((*images.shape[:2], 2), side, dtype=torch.int64)
