"""Parameter counts."""

from __future__ import annotations

from typing import Any, NamedTuple


class RankParameters(NamedTuple):
    """What one (tensor, pipeline) rank holds."""

    tp: int
    pp: int
    parameters: int


def ranks_of(stages: tuple[int, ...], tp: int) -> tuple[RankParameters, ...]:
    """Every rank of pipeline stages, of which each of `tp` ranks holds as many."""
    return tuple(RankParameters(rank, stage, count) for stage, count in enumerate(stages) for rank in range(tp))


class Parameters(NamedTuple):
    """Parameter counts of a job."""

    total: int
    """Unique parameters of the model, vocabulary padding included."""
    embedding: int
    """Of these: token and position tables."""
    output: int
    """Of these: the output layer; 0 when it is tied to the embedding."""
    per_layer: int
    """Of these: one transformer layer, with its experts where it has some."""
    per_rank: tuple[RankParameters, ...]
    """Every (tensor, pipeline) rank. Norms, positions and output biases are replicated over tensor ranks; a tied output
    layer on another stage than the embedding holds a copy of it. Both are counted where they are held."""

    vision: int = 0
    """Of these: what encodes images, and brings them into the decoder's width."""
    inactive: int = 0
    """Of all: the experts that a token is not routed to."""

    @property
    def active(self) -> int:
        """Parameters that a token passes."""
        return self.total - self.inactive

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._asdict(), "per_rank": [rank._asdict() for rank in self.per_rank], "active": self.active}

    @property
    def largest_rank(self) -> int:
        """Parameters of the fullest rank."""
        return max(rank.parameters for rank in self.per_rank)
