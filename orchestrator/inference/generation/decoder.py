"""Passes of a decoder through its pipeline with a cache: over the prompts, and then a token for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional

from orchestrator.inference.generation.cache import Cache, Keeps, Rotation, keep_keys_and_values
from orchestrator.inference.images import batch_of_images
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.models.blocks.registry import ruled_out
from orchestrator.models.layers import layers

_KEPT_COLUMNS = 1024
"""A cache of so many columns is used again for rows of any length: that none is made anew is worth its memory."""


class ModelRunner(Protocol):
    """What the loops over tokens know of a network. Logits are [b, v] in fp32, on the ranks of the last stage."""

    is_captured: bool
    """Whether `decode_step` can be captured as a CUDA graph."""

    def begins(self, prompt: list[int]) -> list[int]:
        """What stands before the first new token of a row."""
        ...

    def prefill(self, requests: Sequence[Request], columns: int) -> torch.Tensor | None:
        """Logits after each prompt; `columns` is the length of the longest row that will come of it."""
        ...

    def decode_step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | None:
        """Logits after one more token of each row, [b], at its position, [b]."""
        ...

    def take(self, rows: torch.Tensor) -> None:
        """Let row i go on from row `rows[i]`."""
        ...

    @property
    def memory(self) -> object:
        """Equal to what it was as long as what is kept lies where it did."""
        ...


class DecoderRunner:
    """Passes of a GPT's stage."""

    def __init__(self, network: Network) -> None:
        self._network, self._module = network, network.module
        # What talks to other processes is not captured.
        self.is_captured = network.ranks.world_size == 1 and not any(ruled_out(network.job, "generation_graphs"))
        self._keeping: list[Keeps] = keep_keys_and_values(self._module.decoder, layers(network.job.model))
        self._cache, self._caches = Cache(0), 0
        self._angles: Rotation | None = None

    def begins(self, prompt: list[int]) -> list[int]:
        """See Passes."""
        return prompt

    @torch.no_grad()
    def prefill(self, requests: Sequence[Request], columns: int) -> torch.Tensor | None:
        """See Passes. A cache that is long enough is used again, so that its memory stays where it is."""
        if not columns <= self._cache.columns <= max(_KEPT_COLUMNS, 4 * columns):
            self._cache, self._caches = Cache(columns), self._caches + 1
            self._angles = self._all_angles(self._cache.columns)
        prompts = [request.tokens for request in requests]
        lengths = self._network.tensor([len(prompt) for prompt in prompts])
        longest = max(map(len, prompts))
        tokens = self._network.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        positions = torch.arange(longest, device=tokens.device).expand_as(tokens)
        images = batch_of_images(self._network, [request.images for request in requests], longest)
        masks = self._module.attention_masks(images["image_mask"]) if images else None
        self._cache.begin(None, self._rotation(positions), lengths, masks)
        hidden = self._hidden(tokens, positions, images)
        return None if hidden is None else self._logits(at_places(hidden, (lengths - 1)[None]))[0]

    @torch.no_grad()
    def decode_step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | None:
        """See Passes."""
        self._cache.begin(positions[:, None], self._rotation(positions[:, None]))
        hidden = self._hidden(tokens[:, None], positions[:, None], {})
        return None if hidden is None else self._logits(hidden)[0]

    @torch.no_grad()
    def verify(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | None:
        """Logits [b, s, v] in fp32 after each of several more tokens of each row, at `positions`, both [b, s].

        A row that keeps some of them goes on behind these, and writes over the others.
        """
        self._cache.begin(positions, self._rotation(positions))
        hidden = self._hidden(tokens, positions, {})
        return None if hidden is None else self._logits(hidden).transpose(0, 1)

    def take(self, rows: torch.Tensor) -> None:
        """See Passes."""
        self._cache.take(rows)

    @property
    def memory(self) -> object:
        """See Passes."""
        return self._caches, self._cache.allocations

    def _hidden(
        self, tokens: torch.Tensor, positions: torch.Tensor, images: dict[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """What the last layer gives, [s, b, h], on the last stage, of `tokens` at `positions`, [b, s]. `images`: those
        of `batch_of_images`."""
        network, module = self._network, self._module
        batch, length = tokens.shape
        hidden = None
        if module.pre_process:
            hidden = module.embedding(input_ids=tokens, position_ids=positions)
            if images:
                hidden = module.with_images(hidden, **images)
        else:
            module.set_input_tensor([network.receive(length, batch)])
        for each in self._keeping:
            each.cache = self._cache
        try:
            hidden = module.decoder(hidden_states=hidden, attention_mask=None)
        finally:
            for each in self._keeping:
                each.cache = None
        if not module.post_process:
            network.send(hidden)
            return None
        found: torch.Tensor = hidden
        return found

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[s, b, v] in fp32 from [s, b, h], on the last stage."""
        module = self._module
        tied = module.share_embeddings_and_output_weights
        weight = module.shared_embedding_or_output_weight() if tied else None
        logits, _ = module.output_layer(hidden, weight=weight, runtime_gather_output=True)
        found: torch.Tensor = logits[..., : self._network.vocab_size].float()
        return found

    def _all_angles(self, columns: int) -> Rotation | None:
        """The cache is of texts that are as long, to their frequencies, as the network's own samples."""
        scaling, length = self._network.job.model.rope_scaling, self._network.job.model.seq_length
        return all_angles(self._module, columns, (1, None) if scaling is None else scaling.lengths_like(length))

    def _rotation(self, positions: torch.Tensor) -> Rotation | None:
        return None if self._angles is None else at_positions(self._angles, positions)


def at_places(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """[n, b, h]: of [s, b, h] those at each row's own places, [n, b]."""
    return hidden[places, torch.arange(hidden.size(1), device=places.device)]


def all_angles(module: Any, columns: int, lengths: tuple[int, int | None] = (1, None)) -> Rotation | None:
    """Cosines and sines of every position, [columns, r], as `rotate` takes them; None where they are not rotary. Of two
    kinds of layers one behind the other, [2, columns, r]. `lengths`: of the shortest and the longest text whose they
    are; nothing is at positions behind the latter.
    """
    if not hasattr(module, "rotary_pos_emb"):  # megatron-core's, and our T5, have it only where it is needed
        return None
    least, most = lengths
    angles = module.rotary_pos_emb(max(columns, least) if most is None else min(columns, most))[..., 0, 0, :]
    behind = max(columns - angles.size(-2), 0)
    return cosines_and_sines(functional.pad(angles, (0, 0, 0, behind)), module.config.params_dtype)


def cosines_and_sines(angles: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Those of angles [..., r], as `rotate` takes them."""
    sines = angles.sin()
    sines[..., : sines.size(-1) // 2].neg_()
    return angles.cos().to(dtype), sines.to(dtype)


def at_positions(angles: Rotation, positions: torch.Tensor) -> Rotation:
    """Those of `positions` [b, s]: [b, 1, s, r], or [2, b, 1, s, r]."""
    cosines, sines = angles
    return cosines[..., positions, :].unsqueeze(-3), sines[..., positions, :].unsqueeze(-3)
