"""Put before a rank's program: random tokens are phrases, each of which its first token tells."""

from __future__ import annotations

from typing import Any

import torch

from orchestrator.runtime import batch_sampler

LENGTH = 6
PHRASES = torch.randperm(240, generator=torch.Generator().manual_seed(0)).view(-1, LENGTH)[:12]


def _phrases(self: batch_sampler.RandomTokens, index: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
    which = torch.randint(0, len(PHRASES), (self.seq_length // LENGTH + 2,), generator=generator)
    tokens = PHRASES[which].flatten()[: self.seq_length + 1]
    return {
        "tokens": tokens[:-1],
        "labels": tokens[1:],
        "loss_mask": torch.ones(self.seq_length),
        "position_ids": torch.arange(self.seq_length),
    }


# For the whole process: the program under test makes its data sets itself.
batch_sampler.RandomTokens.__getitem__ = _phrases  # type: ignore[method-assign] # in this process alone
