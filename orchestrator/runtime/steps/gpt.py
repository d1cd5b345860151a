"""The training step of a decoder: cross entropy of the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from orchestrator.runtime.layers.attention.scores import packed_mask
from orchestrator.runtime.steps.base import Batch, Part

_FIELDS = ("tokens", "labels", "loss_mask", "position_ids", "segment_ids")


class NextToken:
    """Cross entropy of the next token over the tokens that `loss_mask` counts."""

    parts = ("lm",)

    def get_batch(self, samples: Batch) -> Batch:
        """`tokens`, `labels`, `position_ids` (int64) and `loss_mask` (1 where a token counts), [b, s] each, and
        `segment_ids`, where the data set says of which conversation a token is."""
        return {name: samples[name] for name in _FIELDS if name in samples}

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """The loss per token, [b, s], on the last stage."""
        mask = None
        if model.config.packs:
            mask = packed_mask(batch["segment_ids"], model.config.params_dtype)
        # Further tokens are counted by it where they are predicted too.
        counting = {} if model.config.mtp_num_layers is None else {"loss_mask": batch["loss_mask"]}
        output: torch.Tensor = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"], **counting)
        return output

    def loss(self, output: torch.Tensor, batch: Batch) -> Mapping[str, Part]:
        """Sum of the counting tokens' losses, and their number."""
        losses, mask = output.float().view(-1), batch["loss_mask"].view(-1)
        return {"lm": Part((losses * mask).sum(), mask.sum())}
