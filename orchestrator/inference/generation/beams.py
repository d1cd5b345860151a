"""Beam search: the likeliest sequences as a whole, several followed at a time for each prompt.

Hypotheses are compared by log-probability / length ** length_penalty (Wu et al. 2016, "Google's Neural Machine
Translation System", section 7, without its constant), and a search ends when no sequence under way can beat the worst
of those that have ended, as `transformers` does with `early_stopping=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orchestrator.inference.generation.decoder import ModelRunner
from orchestrator.inference.generation.sampling import Choice
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.spec.generation import Generation

_NOT_YET = -1e9
"""The score of a hypothesis that there is not; finite, so that sums with it are numbers."""


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that has ended, or reached its greatest length."""

    tokens: list[int]
    """New ones, without one that ends the text."""
    log_probabilities: list[float]
    """Of each token, and of the one that ended it."""
    score: float
    ended: bool


@dataclass(frozen=True)
class _Beam:
    tokens: tuple[int, ...]
    measured: tuple[float, ...]
    total: float


class Search:
    """The search for one prompt: what was followed so far, and what has ended. Plain numbers, on every rank alike."""

    def __init__(self, options: Generation, ends: Sequence[int]) -> None:
        self._options, self._ends = options, frozenset(() if options.ignore_end else ends)
        # All but one start without a chance: else every beam would follow the same sequence.
        self.beams = [_Beam((), (), 0.0 if number == 0 else _NOT_YET) for number in range(options.num_beams)]
        self._found: list[Hypothesis] = []
        self.is_done = False

    def step(self, candidates: Sequence[tuple[float, int, int]]) -> list[int]:
        """Go on with the best of `candidates`: (total, beam that it goes on from, token), best first, two at least for
        each beam. Returns of each new beam which one it goes on from.
        """
        size, length = self._options.num_beams, len(self.beams[0].tokens) + 1
        ongoing: list[tuple[_Beam, int]] = []
        is_last = length == self._options.max_new_tokens
        for rank, (total, origin, token) in enumerate(candidates):
            old = self.beams[origin]
            beam = _Beam((*old.tokens, token), (*old.measured, total - old.total), total)
            ends = token in self._ends
            if not ends and not is_last and len(ongoing) < size:
                ongoing.append((beam, origin))
            if (ends or is_last) and rank < size:
                self._keep(beam, ended=ends)
        if is_last:
            self.is_done = True
            return list(range(size))
        self.beams = [beam for beam, _ in ongoing]
        if len(self._found) == size:
            best = self.beams[0].total / length**self._options.length_penalty
            self.is_done = best <= self._found[-1].score
        return [origin for _, origin in ongoing]

    def _keep(self, beam: _Beam, *, ended: bool) -> None:
        score = beam.total / len(beam.tokens) ** self._options.length_penalty
        tokens = list(beam.tokens[:-1] if ended else beam.tokens)
        # Sorting is stable: of equals the one that was there first stays.
        self._found = sorted(
            [*self._found, Hypothesis(tokens, list(beam.measured), score, ended)], key=lambda one: -one.score
        )[: self._options.num_beams]

    @property
    def best(self) -> Hypothesis:
        """The best hypothesis, once the search is done."""
        return self._found[0]


@torch.no_grad()
def search(
    network: Network,
    passes: ModelRunner,
    requests: Sequence[Request],
    ends: Sequence[int],
    longest: int | None,
) -> list[Hypothesis]:
    """The best hypothesis for each prompt. All have the same number of beams; `longest`: positions that there are, None
    for any number.
    """
    options = [request.options for request in requests]
    beams, count = options[0].num_beams, max(row.max_new_tokens for row in options)
    starts = [len(passes.begins(request.tokens)) for request in requests]
    searches = [Search(row, ends) for row in options]
    logits = passes.prefill(requests, max(starts) + count)
    first = network.tensor([number for number in range(len(requests)) for _ in range(beams)])
    passes.take(first)
    if logits is not None:
        logits = logits[first]
    choice = Choice(
        [row for row in options for _ in range(beams)],
        [passes.begins(request.text) for request in requests for _ in range(beams)],
        network.vocab_size,
        ends,
        network.device.torch_device,
    )
    positions = network.tensor(starts)[first]
    totals = network.tensor([[beam.total for beam in search.beams] for search in searches], torch.float32)
    for step in range(count):
        # Even if every beam could end in every way, as many others are left as there are beams.
        found = _candidates(network, choice, logits, totals, beams * (1 + max(len(ends), 1)))
        origins: list[int] = []
        tokens: list[int] = []
        for number, (one, candidates) in enumerate(zip(searches, found, strict=True)):
            taken = list(range(beams)) if one.is_done else one.step(candidates)
            origins += [number * beams + origin for origin in taken]
            # One that is done goes on with the others, with any token: its first step may have been its last.
            tokens += [0] * beams if one.is_done else [beam.tokens[-1] for beam in one.beams]
        if all(one.is_done for one in searches) or step == count - 1:
            break
        rows, chosen = network.tensor(origins), network.tensor(tokens)
        passes.take(rows)
        choice.take(rows)
        choice.note(chosen)
        totals = network.tensor([[beam.total for beam in search.beams] for search in searches], torch.float32)
        logits = passes.decode_step(chosen, positions)
        positions = positions + 1
        if longest is not None:  # searches that are done go on with the others
            positions = positions.clamp(max=longest - 1)
    return [one.best for one in searches]


def _candidates(
    network: Network, choice: Choice, logits: torch.Tensor | None, totals: torch.Tensor, count: int
) -> list[list[tuple[float, int, int]]]:
    """For each prompt the `count` best continuations of its beams, (total, beam, token), best first, on every rank."""
    count = min(count, totals.size(1) * network.vocab_size)
    best = network.empty(len(totals), count, dtype=torch.float32)
    places = network.empty(len(totals), count, dtype=torch.long)
    if logits is not None:
        scores = choice.adjusted(logits.log_softmax(dim=-1)).view(*totals.shape, -1) + totals[..., None]
        best, places = scores.flatten(1).topk(count)
    network.from_source(best)
    network.from_source(places)
    return [
        [(total, place // network.vocab_size, place % network.vocab_size) for total, place in zip(*row, strict=True)]
        for row in zip(best.tolist(), places.tolist(), strict=True)
    ]
