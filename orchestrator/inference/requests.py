"""What is asked of a network that writes: a prompt, and how to go on from it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import UserError
from orchestrator.inference.images import Images
from orchestrator.spec.generation import Generation


def token_ids(given: Sequence[int], what: str) -> list[int]:
    """Token ids as Python's own integers, of NumPy's or a tensor's too. Raises UserError, which begins with `what`, for
    what is none.
    """
    try:
        if any(isinstance(each, bool) for each in given):
            raise TypeError("a bool is no id")
        return [operator.index(each) for each in given]
    except TypeError as error:
        raise UserError(
            f"{what} is not a list of token ids, which are whole numbers: {error}", code="not_token_ids"
        ) from error


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
