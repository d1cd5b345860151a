"""The training step of T5: cross entropy of the decoder's next token, from span corruption's samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from orchestrator.runtime.steps.base import Batch, Part


class SpanCorruption:
    """Cross entropy of the decoder's next token, over the tokens that `loss_mask` counts."""

    parts = ("lm",)

    def __init__(self, encoder_length: int) -> None:
        self.encoder_length = encoder_length

    def get_batch(self, samples: Batch) -> Batch:
        """Encoder's input [b, s_enc] and where it is padding, decoder's input, labels and loss mask [b, s_dec]."""
        if "tokens" in samples:
            samples = self._of_random_tokens(samples)
        return {
            "encoder_tokens": samples["text_enc"],
            "encoder_hidden_keys": (samples["enc_mask"] == 0)[:, None, None, :],
            "decoder_tokens": samples["text_dec"],
            # The data set labels padding with -1, which is no token; the loss mask leaves it out.
            "labels": samples["labels"].clamp(min=0),
            "loss_mask": samples["loss_mask"],
        }

    def _of_random_tokens(self, samples: Batch) -> Batch:
        """A batch of the same cost from `data.random_tokens`, of both lengths together."""
        first = self.encoder_length
        return {
            "text_enc": samples["tokens"][:, :first],
            "enc_mask": samples["loss_mask"][:, :first],
            "text_dec": samples["tokens"][:, first:],
            "labels": samples["labels"][:, first:],
            "loss_mask": samples["loss_mask"][:, first:],
        }

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """The loss per decoder token, [b, s_dec], on the last stage."""
        output: torch.Tensor = model(
            batch["encoder_tokens"], batch["decoder_tokens"], batch["encoder_hidden_keys"], batch["labels"]
        )
        return output

    def loss(self, output: torch.Tensor, batch: Batch) -> Mapping[str, Part]:
        """Sum of the counting tokens' losses, and their number."""
        mask = batch["loss_mask"]
        return {"lm": Part((output.float() * mask).sum(), mask.sum())}
