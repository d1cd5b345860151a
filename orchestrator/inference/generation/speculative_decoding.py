"""The loop over drafts: the model's own layers draft tokens, and one pass of the model verifies them for every row.

Each row keeps as many of its drafts as are accepted, and one token more: so rows go on by different numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from orchestrator.inference.generation.decoding import Step
from orchestrator.inference.generation.draft_verification import SpeculativeChoice
from orchestrator.inference.generation.self_drafting import SelfDraftingRunner
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request


class SpeculativeDecoding:
    """Decodes one batch after the other."""

    def __init__(self, network: Network, passes: SelfDraftingRunner) -> None:
        self._network, self._passes = network, passes

    @torch.no_grad()
    def steps(self, requests: Sequence[Request], ends: Sequence[int]) -> Iterator[Step]:
        """One Step after the other, until every row has its `max_new_tokens`, or the caller stops.

        Every rank must take as many steps as the others. The host waits for each of them.
        """
        options = [request.options for request in requests]
        prompts = [request.tokens for request in requests]
        count, lengths = max(row.max_new_tokens for row in options), [len(prompt) for prompt in prompts]
        # Rows that have ended go on with the others, up to here, and need a place for it.
        last = max(lengths) + count
        drafts = self._passes.drafts
        logits = self._passes.prefill(requests, last + drafts + 1)
        choice = SpeculativeChoice(options, prompts, self._network.vocab_size, ends, self._network.device.torch_device)
        text = self._network.tensor([[*prompt, *[0] * (last + 2 * drafts + 1 - len(prompt))] for prompt in prompts])
        newest = self._network.tensor(lengths)
        tokens, measured = torch.zeros_like(newest), torch.zeros_like(newest, dtype=torch.float32)
        if logits is not None:
            tokens, measured = choice(logits)
        self._share(choice, tokens, measured)
        choice.note(tokens)
        text.scatter_(1, newest[:, None], tokens[:, None])
        yield Step(tokens[:, None].tolist(), measured[:, None].tolist())
        for _ in range(count - 1):
            tokens, measured, numbers = self._round(choice, text, newest)
            newest = (newest + numbers).clamp(max=last)
            yield Step(_first(tokens, numbers), _first(measured, numbers), drafts)

    def _round(
        self, choice: SpeculativeChoice, text: torch.Tensor, newest: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What `SpeculativeChoice.verify` gives, on every rank, and written to the `text` [b, n] of each row behind its
        token `newest`, [b].
        """
        drafts = self._passes.drafts
        choice.begin_drafts()
        for number in range(drafts):
            logits = self._passes.draft(number, text)
            draft = torch.zeros_like(newest) if logits is None else choice.draft(logits)
            self._network.from_source(draft)  # which the ranks of the last stage all embed
            choice.note(draft)
            text.scatter_(1, (newest + number + 1)[:, None], draft[:, None])
        choice.end_drafts()
        places = newest[:, None] + torch.arange(drafts + 1, device=newest.device)
        given = text.gather(1, places)
        logits = self._passes.verify(given, places)
        tokens, numbers = torch.zeros_like(given), torch.zeros_like(newest)
        measured = torch.zeros_like(tokens, dtype=torch.float32)
        if logits is not None:
            tokens, measured, numbers = choice.verify(logits, given[:, 1:])
        self._share(choice, tokens, measured)
        self._network.from_source(numbers)
        text.scatter_(1, places + 1, tokens)
        self._passes.accept(numbers - 1, places)
        return tokens, measured, numbers

    def _share(self, choice: SpeculativeChoice, tokens: torch.Tensor, measured: torch.Tensor) -> None:
        """Every rank gets the choice of one: that ranks agree must not hang on how each of them rounds."""
        self._network.from_source(tokens)
        if choice.measures:
            self._network.from_source(measured)


def _first(values: torch.Tensor, numbers: torch.Tensor) -> list[list[Any]]:
    """The first of each row [b, n], as many as `numbers` [b]."""
    return [row[:number] for row, number in zip(values.tolist(), numbers.tolist(), strict=True)]
