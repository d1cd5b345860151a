"""Passes of a T5: the encoder once over each prompt, the decoder a token at a time with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from orchestrator.inference.generation.cache import Cache, CachedBiasedAttention, Rotation
from orchestrator.inference.generation.decoder import all_angles, at_positions
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.spec.encoder_decoder import stages_of


class CachedOutput(torch.nn.Module):
    """A layer whose output for one input is kept, once it is asked for: keys and values of what the encoder gave."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.remembers = False
        self._output: tuple[torch.Tensor, Any] | None = None

    def forget(self) -> None:
        """Before another input."""
        self._output = None

    def take(self, rows: torch.Tensor) -> None:
        """Let row i have what row `rows[i]` had: outputs are [s, b, …]."""
        if self._output is not None:
            self._output = self._output[0].index_select(1, rows), self._output[1]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What the layer gives, with its bias, which is None where it was added."""
        if not self.remembers:
            found: tuple[torch.Tensor, Any] = self.layer(x)
            return found
        if self._output is None:
            self._output = self.layer(x)
        return self._output


class EncoderDecoderRunner:
    """Passes of a T5's stage; see `decoder.Passes`. A prompt is what the encoder reads."""

    is_captured = False

    def __init__(self, network: Network, start: int) -> None:
        """`start`: the token that the decoder begins with."""
        self._network, self._module, self._start = network, network.module, start
        self._encoder_stages = stages_of("encoder", network.job.parallelism)
        self._first_decoder = stages_of("decoder", network.job.parallelism)[0]
        self._attentions: list[CachedBiasedAttention] = []
        self._contexts: list[CachedOutput] = []
        for number, layer in enumerate(self._module.decoder.layers if self._module.decoder is not None else ()):
            attention = CachedBiasedAttention(layer.self_attention.core_attention, number)
            layer.self_attention.core_attention = attention
            self._attentions.append(attention)
            layer.cross_attention.linear_kv = CachedOutput(layer.cross_attention.linear_kv)
            self._contexts.append(layer.cross_attention.linear_kv)
        self._cache = Cache(0)
        self._angles: Rotation | None = None
        self._encoded = network.hidden(0, 0)
        self._hidden_keys = network.empty(0, dtype=torch.bool)

    @property
    def memory(self) -> object:
        """See Passes."""
        return object()

    def begins(self, prompt: list[int]) -> list[int]:
        """See Passes."""
        return [self._start]

    @torch.no_grad()
    def prefill(self, requests: Sequence[Request], columns: int) -> torch.Tensor | None:
        """See Passes."""
        self._cache = Cache(columns)
        self._angles = all_angles(self._module, self._cache.columns)
        for attention in self._attentions:
            attention.forget()
        for context in self._contexts:
            context.forget()
        self._encoded, self._hidden_keys = self._encode([request.tokens for request in requests])
        begin = self._network.tensor([self._start] * len(requests))
        return self.decode_step(begin, torch.zeros_like(begin))

    @torch.no_grad()
    def decode_step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | None:
        """See Passes. All rows are at the same position."""
        rotation = None if self._angles is None else at_positions(self._angles, positions[:, None])
        self._cache.begin(positions[:, None], rotation)
        self._keeps(True)
        try:
            found = self._decode(tokens[:, None], positions[:, None], None)
        finally:
            self._keeps(False)
        return None if found is None else found[:, 0].float()

    def take(self, rows: torch.Tensor) -> None:
        """See Passes. Once there are as many rows as beams, those that go on from each other have the same prompt."""
        self._cache.take(rows)
        if len(rows) != self._encoded.size(1):
            self._encoded, self._hidden_keys = self._encoded[:, rows], self._hidden_keys[rows]
            for context in self._contexts:
                context.take(rows)

    @torch.no_grad()
    def logits(self, prompts: list[list[int]], tokens: list[list[int]]) -> torch.Tensor | None:
        """Logits [b, s, v] of every decoder token, without a cache, in the network's precision, on the last stage."""
        self._encoded, self._hidden_keys = self._encode(prompts)
        longest = max(map(len, tokens))
        padded = self._network.tensor([[*row, *[0] * (longest - len(row))] for row in tokens])
        positions = torch.arange(longest, device=padded.device).expand_as(padded)
        rotary = self._module.rotary_pos_emb(longest) if hasattr(self._module, "rotary_pos_emb") else None
        return self._decode(padded, positions, rotary)

    def _keeps(self, on: bool) -> None:
        for attention in self._attentions:
            attention.cache = self._cache if on else None
        for context in self._contexts:
            context.remembers = on

    def _encode(self, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the encoder gives, [s, b, h], on every stage, and which keys are padding, [b, 1, 1, s]."""
        network, module = self._network, self._module
        longest = max(map(len, prompts))
        tokens = network.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        padding = network.tensor([[place >= len(prompt) for place in range(longest)] for prompt in prompts], torch.bool)
        hidden_keys, hidden = padding[:, None, None], network.hidden(longest, len(prompts))
        if module.encoder is not None:
            received = network.receive(longest, len(prompts))
            if received is None:
                positions = torch.arange(longest, device=tokens.device).expand_as(tokens)
                received = module.embedding(tokens, positions)
            rotary = module.rotary_pos_emb(longest) if hasattr(module, "rotary_pos_emb") else None
            hidden = module.encoder(hidden_states=received, attention_mask=hidden_keys, rotary_pos_emb=rotary)
            if network.ranks.pp != self._encoder_stages[-1]:
                network.send(hidden)
        return network.from_stage(hidden.contiguous(), self._encoder_stages[-1]), hidden_keys

    def _decode(self, tokens: torch.Tensor, positions: torch.Tensor, rotary: Any) -> torch.Tensor | None:
        """Logits [b, s, v] of decoder tokens [b, s], on the last stage."""
        network, module, stage = self._network, self._module, self._network.ranks.pp
        hidden = module.embedding(tokens, positions) if stage == 0 else None
        if hidden is not None and self._first_decoder != 0:
            network.send(hidden, self._first_decoder)
        if module.decoder is None:
            return None
        if hidden is None:
            batch, length = tokens.shape
            hidden = network.receive(length, batch, 0 if stage == self._first_decoder else None)
        hidden = module.decoder(
            hidden_states=hidden,
            attention_mask=None,
            context=self._encoded,
            context_mask=self._hidden_keys,
            rotary_pos_emb=rotary,
        )
        if not module.post_process:
            network.send(hidden)
            return None
        logits: torch.Tensor = module.logits(hidden, gathers=True)[..., : network.vocab_size]
        return logits.transpose(0, 1)
