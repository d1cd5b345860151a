"""Perplexity of running text: WikiText-103 by its words, or any text file, in windows that may overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np

from orchestrator.errors import UserError
from orchestrator.evaluation.base import ScoredTokens, TaskContext, TaskNetwork, TaskResult
from orchestrator.evaluation.statistics import exponential, ratio, scaled
from orchestrator.evaluation.texts import Window, detokenized, windows, words_of_wikitext
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest, read_text


class Perplexity:
    """One text, scored in windows of `seq_length` tokens."""

    contents = ""
    libraries: Sequence[str] = ()

    def __init__(self, asked: EvaluationRequest, setting: TaskContext) -> None:
        text = read_text(Path(asked.where))
        self._is_wikitext = asked.kind == "wikitext"
        self.words = words_of_wikitext(text) if self._is_wikitext else len(text.split())
        if self._is_wikitext:
            text = detokenized(text)
        self.bytes = len(text.encode())
        self._prefix = setting.prefix(asked)
        self.tokens = np.array(setting.tokenizer.encode(text), dtype=np.int32)
        if len(self.tokens) < 2:
            raise UserError(
                f"{asked.where} has {len(self.tokens)} tokens: at least two are needed, "
                "because the first is not scored",
                code="too_few_tokens",
            )
        length = asked.options["seq_length"] - len(self._prefix)
        self.windows = windows(len(self.tokens), length, asked.options["overlapping_eval"] or length)

    def measure(self, work: TaskNetwork) -> TaskResult:
        return self.found([-score.logprob for score in work.scores("windows", _Sequences(self))])

    def found(self, losses: Sequence[float]) -> TaskResult:
        """Numbers from the summed losses of each window."""
        counts = [window.stop - window.first for window in self.windows]
        scored = sum(counts)
        loss = ratio(losses, counts)
        metrics = {
            "perplexity": exponential(loss),
            "loss": loss,
            "bits_per_byte": scaled(loss, scored / math.log(2) / self.bytes),
        }
        if self.words > 1:
            # The first word is not scored either, and what is left is shared out over the others.
            by_word = {"word_perplexity": exponential(scaled(loss, scored / (self.words - 1)))}
            metrics = by_word | metrics if self._is_wikitext else metrics | by_word
        return TaskResult(metrics, {"windows": len(counts), "tokens": scored, "words": self.words, "bytes": self.bytes})

    def scored(self, window: Window) -> ScoredTokens:
        """The tokens of a window, with those that begin every sequence."""
        before = len(self._prefix)
        tokens = [*self._prefix, *self.tokens[window.start : window.stop].tolist()]
        return ScoredTokens(tokens, window.first - window.start + before)


class _Sequences(Sequence[ScoredTokens]):
    """Windows that are cut out when they are asked for: together they may be many times the text."""

    def __init__(self, task: Perplexity) -> None:
        self._task = task

    def __len__(self) -> int:
        return len(self._task.windows)

    @overload
    def __getitem__(self, index: int) -> ScoredTokens: ...

    @overload
    def __getitem__(self, index: slice) -> list[ScoredTokens]: ...

    def __getitem__(self, index: int | slice) -> ScoredTokens | list[ScoredTokens]:
        chosen = self._task.windows[index]
        return self._task.scored(chosen) if isinstance(chosen, Window) else [self._task.scored(each) for each in chosen]
