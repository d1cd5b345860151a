"""Units: layers whose weights are gathered, and whose gradients are summed over replicas, together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.runtime.network.fully_sharded.buckets import ShardedBucket


class ShardedUnit:
    """A layer, or all that is in no layer. Its buckets: of its weights, and of those of its experts, which fewer ranks
    have alike.
    """

    def __init__(self, buckets: Sequence[ShardedBucket]) -> None:
        self.buckets = tuple(buckets)
        self._gathering: list[Any] | None = None
        """What is to be waited for; None where the weights are not here."""
        self._reducing: list[tuple[ShardedBucket, Any, Any]] = []
        self.missing: set[Any] = set()
        """Weights whose gradients are not there yet, in a backward pass."""
        self.has_gradients = False
        """Whether gradients of the whole unit are in memory, and are not being summed."""

    def begin_gather(self) -> None:
        """Get the weights, unless they are here, or under way."""
        if self._gathering is None:
            self._gathering = [bucket.begin_gather() for bucket in self.buckets]

    def gather(self) -> None:
        """Have the weights here."""
        self.begin_gather()
        assert self._gathering is not None
        for work in self._gathering:
            work.wait()
        self._gathering = []

    def release(self) -> None:
        """Give the memory of the weights back, where they are here."""
        if self._gathering is None:
            return
        for work in self._gathering:
            work.wait()
        for bucket in self.buckets:
            bucket.release_weights()
        self._gathering = None

    def allocate_gradients(self) -> None:
        """Before a backward pass of the unit."""
        if self.has_gradients:
            return
        self.finish_reduce()
        for bucket in self.buckets:
            bucket.allocate_gradients()
            self.missing.update(bucket.params)
        self.has_gradients = True

    def begin_reduce(self) -> None:
        """Sum the gradients over the replicas, and keep this rank's part."""
        self.has_gradients = False
        self.missing.clear()
        self._reducing = [(bucket, *bucket.begin_reduce()) for bucket in self.buckets]

    def finish_reduce(self) -> None:
        """Wait for it, where it was begun, and give the memory of the gradients back."""
        for bucket, work, summed in self._reducing:
            work.wait()
            bucket.add_reduced(summed)
        self._reducing = []
