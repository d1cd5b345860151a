"""Which drafted tokens a row keeps, and what it goes on with, so that its tokens are still the model's own draws.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding" (arXiv:2211.17192), algorithm 1, and
Chen et al. 2023 (arXiv:2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.inference.generation.sampling import Choice
from orchestrator.spec.generation import Generation

_OWN_STREAM = 0x9E3779B9
"""Makes of a row's seed that of the noise which Choice has not; torch's generator has seeds of 32 bits."""


class SpeculativeChoice(Choice):
    """A choice by rows that go on by different numbers of tokens.

    A row draws its draft, whether that is accepted, and what stands in its place by three numbers of its step: of a
    seed, they depend on nothing else, however often a step is drafted.
    """

    def __init__(
        self,
        options: Sequence[Generation],
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        ends: Sequence[int],
        device: torch.device,
    ) -> None:
        """See Choice."""
        super().__init__(options, prompts, vocab_size, ends, device)
        self._drafted: list[torch.Tensor] = []
        """The distributions that drafts were drawn from, [b, v] each; none where no row draws."""
        if self.draws:
            steps, noise = self._noise.size(1), []
            for row in options:
                generator = torch.Generator().manual_seed(row.seed ^ _OWN_STREAM)
                noise.append(torch.rand(steps, 2, generator=generator))  # by steps: as many as the longest row has
            self._draft_noise, self._test_noise = torch.stack(noise).to(device).unbind(-1)

    def begin_drafts(self) -> None:
        """Before the drafts of a round: each is drawn as if those before it were accepted."""
        self._drafted = []
        self._before = self._step.clone(), self._seen.clone()

    def draft(self, logits: torch.Tensor) -> torch.Tensor:
        """One more draft for each row, [b], from what a layer of multi-token prediction gives, [b, v] in fp32."""
        scores = self.adjusted(logits)
        if not self.draws:
            return scores.argmax(dim=-1)
        found = self.distribution(scores)
        self._drafted.append(found)
        return drawn(found, self._noise_now(self._draft_noise))

    def end_drafts(self) -> None:
        """After the last draft: nothing of them is accepted yet."""
        self._step, self._seen = self._before

    def verify(self, logits: torch.Tensor, drafts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The next tokens of each row, [b, n + 1], their log-probabilities, and how many there are, [b], at least 1;
        what stands behind these means nothing. `logits`: the model's, [b, n + 1, v] in fp32, after each row's last
        token and each of its drafts, [b, n].
        """
        count = drafts.size(1)
        tokens = torch.zeros(len(drafts), count + 1, dtype=torch.long, device=drafts.device)
        measured = torch.zeros_like(tokens, dtype=torch.float32)
        goes_on = torch.ones(len(drafts), dtype=torch.bool, device=drafts.device)
        numbers = torch.zeros_like(tokens[:, 0])
        for place in range(count + 1):
            scores = self.adjusted(logits[:, place])
            if place < count:
                chosen, is_accepted = self._tested(scores, drafts[:, place], place)
            else:
                chosen, is_accepted = self.chosen(scores), goes_on
            tokens[:, place], measured[:, place] = chosen, self.measured(logits[:, place], chosen)
            numbers += goes_on
            self._note_of(chosen, goes_on)
            goes_on = goes_on & is_accepted
        return tokens, measured, numbers

    def distribution(self, scores: torch.Tensor) -> torch.Tensor:
        """What each row draws from, [b, v] in fp64: of a greedy one all of the likeliest token."""
        probabilities, tokens = self._truncated(scores)
        probabilities = probabilities.double() / probabilities.sum(dim=-1, keepdim=True, dtype=torch.float64)
        drawn_from = torch.zeros_like(probabilities).scatter(-1, tokens, probabilities)
        likeliest = torch.zeros_like(drawn_from).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)
        return torch.where(self._is_greedy[:, None], likeliest, drawn_from)

    def _tested(self, scores: torch.Tensor, draft: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft of each row where it is accepted, with probability min(1, p / q), else a token of what p has more
        than q; and whether it is. p: the model's distribution; q: that which the draft was drawn from.
        """
        if not self.draws:
            chosen = scores.argmax(dim=-1)
            return chosen, chosen == draft
        wanted, had = self.distribution(scores), self._drafted[place]
        p, q = (each.gather(-1, draft[:, None]) for each in (wanted, had))
        is_accepted = (self._noise_now(self._test_noise) * q < p)[:, 0]
        more = (wanted - had).clamp(min=0)
        # Equal distributions leave nothing, and reject nothing but by rounding.
        more = torch.where(more.sum(dim=-1, keepdim=True) > 0, more, wanted)
        return torch.where(is_accepted, draft, drawn(more, self._noise_now(self._noise))), is_accepted

    def _note_of(self, chosen: torch.Tensor, rows: torch.Tensor) -> None:
        """Let these rows go on to the next step, after `chosen` [b]."""
        if self.penalises:
            self._seen[rows, chosen[rows]] = True
        self._step += rows[:, None]


def drawn(weights: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """A token of each row [b] by weights [b, v], whose sum need not be 1, and noise [b, 1] in [0, 1): where the
    distribution function exceeds it.
    """
    cumulative = weights.double().cumsum(dim=-1)
    found = (cumulative > noise * cumulative[:, -1:]) & (weights > 0)
    return torch.where(found.any(dim=-1), found.int().argmax(dim=-1), weights.argmax(dim=-1))
