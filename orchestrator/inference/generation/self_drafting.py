"""Passes of a decoder that drafts tokens itself, by its layers of multi-token prediction (DeepSeek-V3, section 2.2).

The main layers are at a row's token n, its newest, which is chosen and not yet read. Layer k joins the hidden state of
token i with token i + k and predicts token i + k + 1: at i = n - 1 layer 1 reads token n and drafts the next one, which
layer 2 reads at the same place. Behind a draft that was rejected layer k has read a wrong token at the last k - 1
places: so every layer goes once more over the places since then, with the tokens that are there now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orchestrator.inference.generation.cache import Cache, keep_of_layer
from orchestrator.inference.generation.decoder import DecoderRunner, at_places
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.models.layers import layers, prediction_layers


@dataclass
class _Window:
    """The places of each row that layers of multi-token prediction go over next."""

    hidden: torch.Tensor
    """[w, b, h]: what the layers before give there."""
    positions: torch.Tensor
    """[b, w]"""
    lengths: torch.Tensor | None
    """[b] of the prompts, where these are all of their places."""
    last: torch.Tensor
    """[1, b]: at which of the places the newest token is the next one."""


class SelfDraftingRunner(DecoderRunner):
    """Passes of a GPT's stage, the last of which drafts."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.drafts = len(prediction_layers(network.job.model))
        """Tokens that it drafts at a time."""
        drafting = self._module.mtp.layers if self._module.post_process else ()
        blocks = layers(network.job.model)[-1]
        self._drafting = [
            keeping
            for number, layer in enumerate(drafting)
            for keeping in keep_of_layer(layer.transformer_layer, blocks, number)
        ]
        self._draft_cache = Cache(0)
        self._window: _Window | None = None
        self._given: torch.Tensor | None = None
        self._earlier: torch.Tensor | None = None
        """[drafts - 1, b, h]: of the places before those that are read next, which later layers go over again."""

    def _hidden(
        self, tokens: torch.Tensor, positions: torch.Tensor, images: dict[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """See DecoderRunner; it is kept for drafts."""
        self._given = super()._hidden(tokens, positions, images)
        return self._given

    @torch.no_grad()
    def prefill(self, requests: Sequence[Request], columns: int) -> torch.Tensor | None:
        """See ModelRunner."""
        logits = super().prefill(requests, columns)
        if self._given is not None:
            if self._draft_cache.columns != self._cache.columns:
                self._draft_cache = Cache(self._cache.columns)
            lengths = self._network.tensor([len(request.tokens) for request in requests])
            places = torch.arange(self._given.size(0), device=lengths.device).expand(len(requests), -1)
            self._window = _Window(self._given, places, lengths, (lengths - 1)[None])
            self._earlier = at_places(self._given, (lengths[None] + self._before(lengths)).clamp(min=0))
        return logits

    @torch.no_grad()
    def draft(self, number: int, text: torch.Tensor) -> torch.Tensor | None:
        """Logits [b, v] in fp32 for draft `number` of each row, from 0 on, on the last stage. `text` [b, n]: the tokens
        of each row by position, with the drafts before this one.
        """
        window, module = self._window, self._module
        if window is None:
            return None
        kept = self._drafting[number]
        following = text.gather(1, window.positions + number + 1)
        embedded = module.embedding(input_ids=following, position_ids=window.positions)
        is_prompt = window.lengths is not None
        rotation = self._rotation(window.positions)
        self._draft_cache.begin(None if is_prompt else window.positions, rotation, window.lengths)
        kept.cache = self._draft_cache
        try:
            window.hidden = module.further_hidden(number, window.hidden, embedded)
        finally:
            kept.cache = None
        return self._logits(at_places(window.hidden, window.last))[0]

    def accept(self, accepted: torch.Tensor, positions: torch.Tensor) -> None:
        """Go on behind so many of each row's drafts, [b], which were verified at `positions`, [b, s]. What was read of
        the others is written over.
        """
        self._cache.accept(accepted)
        if self._given is None:
            return
        assert self._earlier is not None, "prompts were read"
        hidden = torch.cat((self._earlier, self._given))
        before = self._before(accepted)
        # Those before the first token are as the first, whose place they take.
        earlier = (positions[:, :1] + before.t()).clamp(min=0)
        last = len(before) + accepted[None]
        self._window = _Window(hidden, torch.cat((earlier, positions), dim=1), None, last)
        self._earlier = at_places(hidden, last + 1 + before)

    def _before(self, like: torch.Tensor) -> torch.Tensor:
        """The places before the next one, as differences from it, [drafts - 1, 1]: -1 is the last."""
        return torch.arange(1 - self.drafts, 0, device=like.device)[:, None]
