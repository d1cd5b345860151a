"""From tokens to text as they come: characters that span tokens, stop strings, and where a text ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.spec.generation import Generation

_CONTEXT = 6
"""Tokens before a text that it is decoded with: some tokenizers leave out a space at the beginning."""
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"

Finish = Literal["end", "stop", "length"]


def finite(value: float) -> float | None:
    """A number for JSON, which has no NaN: None for a value that is not finite."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Continuation:
    """What a network has written after a prompt."""

    prompt: list[int]
    """The tokens that it went on from."""
    tokens: list[int]
    """The new ones, without one that ends the text."""
    text: str
    """The new ones as text, up to a stop string; empty where there is no tokenizer."""
    finish: Finish
    """The text ended by itself, at a stop string, or at `max_new_tokens`."""
    log_probabilities: list[float] | None = None
    """Of each new token, where they were asked for: the natural logarithm, before any option changed it."""
    score: float | None = None
    """Of a beam: its log-probability over its length to the power of the length penalty."""
    draft_tokens: int = 0
    """Tokens that were drafted for it; none without speculative decoding."""
    accepted_tokens: int = 0
    """Those of them that the model accepted."""


@dataclass(frozen=True)
class TextDelta:
    """What one more token has added to a text."""

    number: int
    """Of the prompt."""
    text: str
    """What can be shown of it now; a part of a character, or of what may become a stop string, is kept back."""
    token: int | None
    """None for one that ends the text, and where no text is wanted of it."""
    log_probability: float
    done: Continuation | None
    """The whole, with the last piece."""


@dataclass
class IncrementalDetokenizer:
    """Follows one continuation. Without a tokenizer there is no text, and no stop string."""

    number: int
    prompt: list[int]
    options: Generation
    ends: Sequence[int]
    tokenizer: Tokenizer | None
    shows: bool
    """Whether pieces carry text; if not, all of it is made at the end, unless a stop string is looked for."""
    before: list[int]
    """Tokens that the new ones follow."""
    tokens: list[int] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    _drafts: int = 0
    _accepted: int = 0
    _decoded: str = ""
    _shown: int = 0
    _base: list[int] = field(default_factory=list)
    _base_text: str = ""
    _since: int = 0

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.before:
            context = self.before[-_CONTEXT:]
            text = self.tokenizer.decode(context)
            if not text.endswith(_UNFINISHED):
                self._base, self._base_text = context, text

    def count_drafts(self, drafts: int) -> None:
        """Before the tokens that come of so many drafts."""
        self._drafts += drafts

    def add(self, token: int, log_probability: float, *, is_draft: bool = False) -> TextDelta:
        """One more token. `is_draft`: one that was drafted and accepted."""
        if token in self.ends and not self.options.ignore_end:
            return self._piece(None, log_probability, "end")
        self.tokens.append(token)
        self._accepted += is_draft
        self.measured.append(log_probability)
        if self.shows or self.options.stop:
            self._decode()
        at = self._stop_at()
        if at is not None:
            self._decoded = self._decoded[:at]
            return self._piece(token, log_probability, "stop")
        finish: Finish | None = "length" if len(self.tokens) == self.options.max_new_tokens else None
        return self._piece(token, log_probability, finish)

    def _decode(self, *, all_of_it: bool = False) -> None:
        """Add what has become readable. Only the tokens since then are decoded again, not all of them."""
        if self.tokenizer is None:
            return
        text = self.tokenizer.decode([*self._base, *self.tokens[self._since :]])
        if text.endswith(_UNFINISHED) and not all_of_it:
            return
        self._decoded += text[len(self._base_text) :]
        if not all_of_it:
            self._base = self.tokens[self._since :][-_CONTEXT:]
            self._since = len(self.tokens)
            self._base_text = self.tokenizer.decode(self._base)

    def _stop_at(self) -> int | None:
        """Where the first stop string begins."""
        found = [self._decoded.find(stop, self._from(stop)) for stop in self.options.stop]
        return min((place for place in found if place >= 0), default=None)

    def _from(self, stop: str) -> int:
        """What was shown holds no part of a stop string."""
        return max(self._shown - len(stop), 0)

    def _piece(self, token: int | None, log_probability: float, finish: Finish | None) -> TextDelta:
        if finish is None:
            until = len(self._decoded) - self._kept_back()
            text, self._shown = self._decoded[self._shown : until], max(self._shown, until)
            return TextDelta(self.number, text, token, log_probability, None)
        if finish != "stop":
            self._decode(all_of_it=True)
            if (at := self._stop_at()) is not None:
                self._decoded, finish = self._decoded[:at], "stop"
        measured = self.measured if self.options.log_probabilities else None
        whole = Continuation(
            self.prompt,
            self.tokens,
            self._decoded,
            finish,
            measured,
            draft_tokens=self._drafts,
            accepted_tokens=self._accepted,
        )
        return TextDelta(self.number, self._decoded[self._shown :], token, log_probability, whole)

    def _kept_back(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max(map(len, self.options.stop), default=1) - 1
        for length in range(min(longest, len(self._decoded)), 0, -1):
            if any(stop.startswith(self._decoded[-length:]) for stop in self.options.stop):
                return length
        return 0
