"""Perplexity of running text: WikiText-103 by its words, or any text file, in windows that may overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.evaluation.base import Found, Scored, Setting, Work
from orchestrator.evaluation.statistics import exponential, ratio, scaled
from orchestrator.evaluation.texts import Window, detokenized, windows, words_of_wikitext
from orchestrator.results.asked import Asked


class Perplexity:
    """One text, scored in windows of `seq_length` tokens."""

    contents = ""
    libraries: Sequence[str] = ()

    def __init__(self, asked: Asked, setting: Setting) -> None:
        text = _read(Path(asked.where))
        self._is_wikitext = asked.kind == "wikitext"
        self.words = words_of_wikitext(text) if self._is_wikitext else len(text.split())
        if self._is_wikitext:
            text = detokenized(text)
        self.bytes = len(text.encode())
        self._prefix = setting.prefix(asked)
        self.tokens = setting.tokenizer.encode(text)
        if len(self.tokens) < 2:
            raise UserError(
                f"{asked.where} has {len(self.tokens)} tokens: two are needed, since the first is not scored"
            )
        length = asked.options["seq_length"] - len(self._prefix)
        self.windows = windows(len(self.tokens), length, asked.options["overlapping_eval"] or length)

    def measure(self, work: Work) -> Found:
        scores = work.scores("windows", [self._scored(window) for window in self.windows])
        return self.found([-score.logprob for score in scores])

    def found(self, losses: Sequence[float]) -> Found:
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
        return Found(metrics, {"windows": len(counts), "tokens": scored, "words": self.words, "bytes": self.bytes})

    def _scored(self, window: Window) -> Scored:
        before = len(self._prefix)
        return Scored([*self._prefix, *self.tokens[window.start : window.stop]], window.first - window.start + before)


def _read(path: Path) -> str:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    if not text.strip():
        raise UserError(f"{path} is empty")
    return text
