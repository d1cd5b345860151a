"""Put before a rank's program: a random token counts where it is not a multiple of 3."""

from __future__ import annotations

from typing import Any

from orchestrator.runtime import batch_sampler

_original = batch_sampler.RandomTokens.__getitem__


def _masked(self: batch_sampler.RandomTokens, index: int) -> dict[str, Any]:
    sample = _original(self, index)
    return {**sample, "loss_mask": (sample["labels"] % 3 != 0).float()}


# For the whole process: the program under test makes its data sets itself.
batch_sampler.RandomTokens.__getitem__ = _masked  # type: ignore[method-assign] # in this process alone
