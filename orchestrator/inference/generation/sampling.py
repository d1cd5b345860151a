"""Choosing the next token of every row of a batch, each by options of its own, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from orchestrator.spec.generation import Generation

_NOISE = 256


class Choice:
    """How each row chooses, and what it has so far. All of it is tensors of fixed size, so that a step can be captured.

    What a row draws depends on its own options, seed and text alone: its noise is drawn beforehand, on the host.
    """

    def __init__(
        self,
        options: Sequence[Generation],
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        ends: Sequence[int],
        device: torch.device,
    ) -> None:
        """`prompts`: tokens that count as having occurred; `ends`: those that end a text."""
        self.draws = any(not row.is_greedy for row in options)
        self.penalises = any(row.repetition_penalty != 1.0 for row in options)
        self.withholds = any(row.min_new_tokens for row in options) and bool(ends)
        self.measures = any(row.log_probabilities for row in options)
        # Rounded up, so that steps of batches that differ a little have the same kind.
        steps = -(-max(row.max_new_tokens for row in options) // _NOISE) * _NOISE

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        self._step = torch.zeros(len(options), 1, dtype=torch.long, device=device)
        self._temperature = column([1.0 if row.is_greedy else row.temperature for row in options])
        self._is_greedy = column([row.is_greedy for row in options], torch.bool)[:, 0]
        self._top_k = column([row.top_k or vocab_size for row in options], torch.long)
        self._top_p = column([row.top_p for row in options])
        self._decay = column([row.top_p_decay for row in options])
        self._bound = column([row.top_p_bound for row in options])
        self._penalty = column([row.repetition_penalty for row in options])
        self._least = column([float(row.min_new_tokens) for row in options])
        noise = [torch.rand(steps, generator=torch.Generator().manual_seed(row.seed)) for row in options]
        self._noise = torch.stack(noise).to(device) if self.draws else torch.empty(0, device=device)
        self._is_end = torch.zeros(1, vocab_size, dtype=torch.bool, device=device)
        self._is_end[:, list(ends)] = True
        self._seen = torch.zeros(len(options) if self.penalises else 0, vocab_size, dtype=torch.bool, device=device)
        if self.penalises:
            for number, prompt in enumerate(prompts):
                self._seen[number, list(prompt)] = True

    @property
    def kind(self) -> tuple[object, ...]:
        """What decides which operations a step has, and of which sizes."""
        flags = (self.draws, self.penalises, self.withholds, self.measures)
        return (*flags, len(self._temperature), self._noise.shape)

    def become(self, other: Choice) -> None:
        """Take over what another of the same kind holds, in place."""
        for name, tensor in vars(self).items():
            if isinstance(tensor, torch.Tensor):
                tensor.copy_(getattr(other, name))

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token of each row [b] from logits [b, v] in fp32, and its log-probability there in fp32; that is
        not changed by any option, and 0 where no row asks for it.
        """
        chosen = self.chosen(self.adjusted(logits))
        return chosen, self.measured(logits, chosen)

    def chosen(self, scores: torch.Tensor) -> torch.Tensor:
        """The next token of each row [b] from adjusted scores [b, v]."""
        likeliest = scores.argmax(dim=-1)
        return torch.where(self._is_greedy, likeliest, self._draw(scores)) if self.draws else likeliest

    def measured(self, logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The log-probability of each row's token, [b]; 0 where no row asks for it."""
        if not self.measures:
            return torch.zeros_like(chosen, dtype=torch.float32)
        return logits.log_softmax(dim=-1).gather(-1, chosen[:, None])[:, 0]

    def note(self, chosen: torch.Tensor) -> None:
        """Go on to the next step, after `chosen` [b]."""
        if self.penalises:
            self._seen.scatter_(1, chosen[:, None], True)
        self._step += 1

    def adjusted(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores [b, v] with repetitions made less likely, and without an end that comes too early."""
        if self.penalises:
            penalised = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
            scores = torch.where(self._seen, penalised, scores)
        if self.withholds:
            scores = scores.masked_fill(self._is_end & (self._step < self._least), -math.inf)
        return scores

    def take(self, rows: torch.Tensor) -> None:
        """Let row i go on from what row `rows[i]` has seen."""
        if self.penalises:
            self._seen = self._seen[rows]

    def _draw(self, scores: torch.Tensor) -> torch.Tensor:
        """By the inverse of the distribution function, over the tokens in the order of their probability."""
        probabilities, tokens = self._truncated(scores)
        cumulative = probabilities.cumsum(dim=-1)
        place = (cumulative <= self._noise_now(self._noise) * cumulative[:, -1:]).sum(dim=-1, keepdim=True)
        place = torch.minimum(place, ((probabilities > 0).sum(dim=-1, keepdim=True) - 1).clamp(min=0))
        return tokens.gather(-1, place)[:, 0]

    def _noise_now(self, noise: torch.Tensor) -> torch.Tensor:
        """Of noise [b, steps] that of each row's step, [b, 1]."""
        return noise.gather(1, self._step.clamp(max=noise.size(1) - 1))

    def _truncated(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Probabilities [b, v] in falling order, 0 for tokens that are not drawn, and whose they are; their sum is not
        1. Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", for `top_p`.
        """
        ordered, tokens = (scores / self._temperature).sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(dim=-1)
        ranks = torch.arange(scores.size(-1), device=scores.device)
        probabilities = probabilities * (ranks < self._top_k)
        before = probabilities.cumsum(dim=-1) - probabilities
        top_p = torch.maximum(self._top_p * self._decay**self._step, self._bound)
        kept = (before < top_p * probabilities.sum(dim=-1, keepdim=True)) & (probabilities > 0)
        kept[:, 0] = True
        return probabilities * kept, tokens
