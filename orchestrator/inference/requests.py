"""What is asked of a network that writes: a prompt, and how to go on from it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.inference.images import Images
from orchestrator.spec.generation import Generation


@dataclass(frozen=True)
class Request:
    """A prompt, as tokens, and how to go on from it."""

    number: int
    """What its pieces are known by."""
    tokens: list[int]
    options: Generation
    images: Images | None = None
    """Images among the tokens."""

    @property
    def text(self) -> list[int]:
        """The tokens that stand for no patch of an image."""
        return self.tokens if self.images is None else self.images.text(self.tokens)
