"""The training step of a decoder that sees: cross entropy of the next token, images among those before it."""

from __future__ import annotations

from typing import Any

import torch

from orchestrator.runtime.steps.base import Batch
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.spec.vision import VisionSpec


class NextTokenAfterImages(NextToken):
    """Cross entropy of the next token over the tokens that `loss_mask` counts."""

    image_inputs: tuple[str, ...] = ("images", "image_mask")
    """What of a batch a model takes for the images."""

    def __init__(self, vision: VisionSpec) -> None:
        self.vision = vision

    def get_batch(self, samples: Batch) -> Batch:
        """As a GPT's, and `images` [b, n, 3, size, size] (uint8) with `image_mask` [b, s], not 0 where a patch of an
        image stands: the patches of a sequence's images, in their order."""
        if "images" not in samples:
            samples = self._of_random_tokens(samples)
        return {**super().get_batch(samples), "images": samples["images"], "image_mask": samples["image_mask"]}

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """The loss per token, [b, s], on the last stage."""
        output: torch.Tensor = model(
            batch["tokens"],
            batch["position_ids"],
            None,
            labels=batch["labels"],
            **{name: batch[name] for name in self.image_inputs},
        )
        return output

    def _of_random_tokens(self, samples: Batch) -> Batch:
        """A batch of the same cost from `data.random_tokens`: as many images as there may be, before the text, each
        with the colours of its first tokens."""
        number, size = self.vision.images_per_sequence, self.vision.image_size
        tokens, patches = samples["tokens"], self.vision.tokens_per_image
        is_patch = (samples["position_ids"] < number * patches).to(torch.float32)
        colours = tokens[:, : number * patches : patches].unsqueeze(2) % 256
        pixels = torch.arange(3 * size * size, device=tokens.device).view(1, 1, -1)
        images = ((pixels * (colours + 1)) % 256).to(torch.uint8)
        return {
            **samples,
            "images": images.view(tokens.size(0), number, 3, size, size),
            "image_mask": is_patch,
            # The token behind the last patch is the first that text is asked for.
            "loss_mask": samples["loss_mask"] * (samples["position_ids"] >= number * patches - 1),
        }
