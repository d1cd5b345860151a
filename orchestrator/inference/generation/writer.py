"""Texts for a batch of requests: token by token, or by a search over beams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.inference.generation.beams import search
from orchestrator.inference.generation.decoder import ModelRunner
from orchestrator.inference.generation.decoding import Decoding
from orchestrator.inference.generation.self_drafting import SelfDraftingRunner
from orchestrator.inference.generation.speculative_decoding import SpeculativeDecoding
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.inference.texts import Continuation, IncrementalDetokenizer, TextDelta


@dataclass(frozen=True)
class Writer:
    """Writes texts with a network."""

    network: Network
    passes: ModelRunner
    longest: int | None
    """Positions that the network has; None for any number."""
    tokenizer: Tokenizer | None

    @cached_property
    def _decoding(self) -> Decoding | SpeculativeDecoding:
        if isinstance(self.passes, SelfDraftingRunner):
            return SpeculativeDecoding(self.network, self.passes)
        return Decoding(self.network, self.passes, self.longest)

    def write(self, requests: Sequence[Request], ends: Sequence[int], *, shows: bool) -> Iterator[TextDelta]:
        """The pieces of all requests, those with as many beams together. `shows`: pieces carry text."""
        for beams in sorted({request.options.num_beams for request in requests}):
            together = [request for request in requests if request.options.num_beams == beams]
            yield from self._sampled(together, ends, shows) if beams == 1 else self._searched(together, ends)

    def _sampled(self, requests: Sequence[Request], ends: Sequence[int], shows: bool) -> Iterator[TextDelta]:
        followers = [self._follower(request, ends, shows) for request in requests]
        open_ = set(range(len(requests)))
        for step in self._decoding.steps(requests, ends):
            for row in sorted(open_):
                followers[row].count_drafts(step.drafts)
                last = len(step.tokens[row]) - 1  # all before it were drafted
                for place, (token, value) in enumerate(zip(step.tokens[row], step.log_probabilities[row], strict=True)):
                    piece = followers[row].add(token, value, is_draft=place < last)
                    yield piece
                    if piece.done is not None:
                        open_.discard(row)
                        break
            if not open_:
                return

    def _searched(self, requests: Sequence[Request], ends: Sequence[int]) -> Iterator[TextDelta]:
        found = search(self.network, self.passes, requests, ends, self.longest)
        for request, best in zip(requests, found, strict=True):
            done = self._told(request, best.tokens, best.log_probabilities, ends)
            yield TextDelta(request.number, done.text, None, 0.0, replace(done, score=best.score))

    def _told(self, request: Request, tokens: list[int], measured: list[float], ends: Sequence[int]) -> Continuation:
        """Tokens that are all known as a continuation; a stop string cuts their text."""
        follower = self._follower(request, ends, shows=False)
        # The token that ended it, if one did, stands for any.
        for token, value in zip([*tokens, *list(ends)[:1]], [*measured, 0.0], strict=False):
            piece = follower.add(token, value)
            if piece.done is not None:
                return piece.done
        raise AssertionError("a hypothesis has ended, or is as long as it may be")

    def _follower(self, request: Request, ends: Sequence[int], shows: bool) -> IncrementalDetokenizer:
        context = self.passes.begins(request.tokens)
        return IncrementalDetokenizer(
            request.number, request.tokens, request.options, ends, self.tokenizer, shows, context
        )
