"""The loop over tokens: every row of a batch goes on by one, all of it on the device, and the host looks on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.inference.generation.decoder import ModelRunner
from orchestrator.inference.generation.graphs import GraphedStep
from orchestrator.inference.generation.sampling import Choice
from orchestrator.inference.network import Network
from orchestrator.inference.requests import Request
from orchestrator.spec.generation import Generation


@dataclass(frozen=True)
class Step:
    """What one step has given each row of a batch."""

    tokens: list[list[int]]
    """One, or as many as were accepted of its drafts and one more."""
    log_probabilities: list[list[float]]
    """Of each token; all 0 where no row asks for them."""
    drafts: int = 0
    """Drafts that each row had."""


class Decoding:
    """Decodes one batch after the other. What is captured for one serves the next of the same size."""

    def __init__(self, network: Network, passes: ModelRunner, longest: int | None) -> None:
        """`longest`: positions that there are; None for any number."""
        self._network, self._passes = network, passes
        self._longest = longest
        self._captured: tuple[object, _BatchState, GraphedStep] | None = None

    @torch.no_grad()
    def steps(self, requests: Sequence[Request], ends: Sequence[int]) -> Iterator[Step]:
        """One Step after the other, until every row has its `max_new_tokens`, or the caller stops.

        Every rank must take as many steps as the others; on a GPU one more is started than was looked at, so that the
        GPU never waits for the host.
        """
        count = max(request.options.max_new_tokens for request in requests)
        starts = [len(self._passes.begins(request.tokens)) for request in requests]
        # Rows that have ended go on with the others, and need a place for it.
        columns = max(starts) + count
        if self._longest is not None:
            columns = min(columns, self._longest)
        logits = self._passes.prefill(requests, columns)
        occurred = [self._passes.begins(request.text) for request in requests]
        state = _BatchState(self._network, occurred, starts, [request.options for request in requests], ends)
        ahead = 1 if self._network.device.is_cuda else 0
        pending: deque[_StepResult] = deque()
        self._choose(state, logits)
        pending.append(_StepResult(state, self._network.device.is_cuda))
        decode_step = None
        for _ in range(count - 1):
            if len(pending) > ahead:
                yield pending.popleft().step()
            if decode_step is None:
                state, decode_step = self._prepared(state)
            decode_step()
            pending.append(_StepResult(state, self._network.device.is_cuda))
        for fetched in pending:
            yield fetched.step()

    def _prepared(self, state: _BatchState) -> tuple[_BatchState, Any]:
        """The memory that steps work on, and the step: those of the batch before where they fit."""

        def plain() -> None:
            self._advance(state)

        if not self._passes.is_captured:
            return state, plain
        key = (state.choice.kind, self._passes.memory)
        if self._captured is None or self._captured[0] != key:
            self._captured = (key, state, GraphedStep(plain, captures=self._network.device.is_cuda))
        _, known, step = self._captured
        if known is not state:
            known.become(state)
        return known, step

    def _advance(self, state: _BatchState) -> None:
        logits = self._passes.decode_step(state.tokens, state.positions)
        state.positions += 1
        if self._longest is not None:
            state.positions.clamp_(max=self._longest - 1)
        self._choose(state, logits)

    def _choose(self, state: _BatchState, logits: torch.Tensor | None) -> None:
        """Every rank gets the choice of one: that ranks agree must not hang on how each of them rounds."""
        if logits is not None:
            tokens, measured = state.choice(logits)
            state.tokens.copy_(tokens)
            state.measured.copy_(measured)
        self._network.from_source(state.tokens)
        if state.choice.measures:
            self._network.from_source(state.measured)
        state.choice.note(state.tokens)


class _BatchState:
    """Where every row of a batch is: tensors [b] that each step writes."""

    def __init__(
        self,
        network: Network,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int],
        options: Sequence[Generation],
        ends: Sequence[int],
    ) -> None:
        self.tokens = network.tensor([0] * len(prompts))
        self.measured = network.tensor([0.0] * len(prompts), torch.float32)
        self.positions = network.tensor(list(starts))
        """Of `tokens`, which the next pass takes."""
        self.choice = Choice(options, prompts, network.vocab_size, ends, network.device.torch_device)

    def become(self, other: _BatchState) -> None:
        """Take over what another of the same kind holds, in place."""
        for mine, theirs in (
            (self.tokens, other.tokens),
            (self.measured, other.measured),
            (self.positions, other.positions),
        ):
            mine.copy_(theirs)
        self.choice.become(other.choice)


class _StepResult:
    """One step's result on its way to the host."""

    def __init__(self, state: _BatchState, is_cuda: bool) -> None:
        self._measures = state.choice.measures
        self._tokens = self._copy(state.tokens, is_cuda)
        self._measured = self._copy(state.measured, is_cuda) if self._measures else None
        self._done: Any = None
        if is_cuda:
            cuda: Any = torch.cuda  # its classes have no types
            self._done = cuda.Event()
            self._done.record()

    @staticmethod
    def _copy(tensor: torch.Tensor, is_cuda: bool) -> torch.Tensor:
        if not is_cuda:
            return tensor.clone()
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    def step(self) -> Step:
        """Waits until it is here."""
        if self._done is not None:
            self._done.synchronize()
        tokens = self._tokens[:, None].tolist()
        return Step(tokens, self._measured[:, None].tolist() if self._measured is not None else [[0.0]] * len(tokens))
