"""Passes of a decoder whose tokens have positions in time, by row and by column, with a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.inference.generation.cache import Rotation
from orchestrator.inference.generation.decoder import DecoderRunner, cosines_and_sines
from orchestrator.inference.images import places_of_images
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.runtime.layers.images.patch_order import token_positions


class MultimodalRunner(DecoderRunner):
    """Passes of a GPT's stage. Behind an image, which takes more tokens than positions, text goes on from where the
    image ends: each row's tokens stand so many positions before their places in the cache.
    """

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.is_captured = False  # not tried
        self._of_prompts: torch.Tensor | None = None
        """[3, b, s], in a pass over prompts."""
        self._offsets = network.tensor([])
        """[b]: what is added to a place in the cache."""

    @torch.no_grad()
    def prefill(self, requests: Sequence[Request], columns: int) -> torch.Tensor | None:
        """See ModelRunner."""
        lengths = self._network.tensor([len(request.tokens) for request in requests])
        longest = max(len(request.tokens) for request in requests)
        # With a place for the token behind the longest.
        images = places_of_images(self._network, [request.images for request in requests], longest + 1)
        if images:
            merge_size = self._network.job.model.image_encoder.merge_size
            grids = images["grids"].to(lengths.device, non_blocking=True)
            positions = token_positions(images["image_mask"], grids, merge_size)
        else:
            positions = torch.arange(longest + 1, device=lengths.device).expand(3, len(requests), -1)
        self._offsets = positions[0].gather(1, lengths[:, None])[:, 0] - lengths
        self._of_prompts = positions[..., :longest]
        try:
            return super().prefill(requests, columns)
        finally:
            self._of_prompts = None

    def take(self, rows: torch.Tensor) -> None:
        """See ModelRunner."""
        super().take(rows)
        self._offsets = self._offsets[rows]

    def _all_angles(self, columns: int) -> Rotation | None:
        return None

    def _rotation(self, positions: torch.Tensor) -> Rotation | None:
        own = self._of_prompts
        if own is None:
            own = (positions + self._offsets[:, None]).expand(3, -1, -1)
        module = self._module
        angles: torch.Tensor = module.rotary_pos_emb(own, module.mrope_section)
        return cosines_and_sines(angles.permute(1, 2, 0, 3), module.config.params_dtype)
