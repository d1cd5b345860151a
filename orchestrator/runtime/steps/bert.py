"""The training step of BERT: cross entropy of masked tokens and of how a sample's two parts belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from orchestrator.runtime.steps.base import Batch, Part

_FIELDS = ("text", "types", "labels", "is_random", "padding_mask", "loss_mask")


class MaskedTokens:
    """Two parts: "lm", over the masked tokens alone, and with a binary head "order", over the samples.

    Samples have different numbers of masked tokens. "lm" is the mean over a micro-batch, which counts once: so what is
    reported is what is minimised. With `per_token`, which a binary head does without, each token counts.
    """

    def __init__(self, has_binary_head: bool, tokentypes: int, *, per_token: bool = False) -> None:
        self.has_binary_head, self.tokentypes, self.per_token = has_binary_head, tokentypes, per_token
        self.parts: tuple[str, ...] = ("lm", "order") if has_binary_head else ("lm",)

    def get_batch(self, samples: Batch) -> Batch:
        """`text`, `types` (which part a token is of), `labels`, `padding_mask` (0 where a sample is filled up) and
        `loss_mask` (1 where a token is masked), [b, s] each; `is_random` (1 where the parts do not follow), [b]."""
        if "text" not in samples:
            samples = _of_random_tokens(samples)
        return {name: samples[name] for name in _FIELDS}

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """On the last stage the loss per token, [b, s]; with a binary head that per sample behind it, [b, s + 1]."""
        types = batch["types"] if self.tokentypes else None
        if self.tokentypes == 1:  # both parts are of it
            types = torch.zeros_like(batch["types"])
        output = model(batch["text"], batch["padding_mask"], tokentype_ids=types, lm_labels=batch["labels"])
        if isinstance(output, torch.Tensor):  # what goes to the next stage
            return output
        losses: torch.Tensor
        losses, order = output
        if not self.has_binary_head:
            return losses
        order_losses = functional.cross_entropy(order.float(), batch["is_random"], reduction="none")
        return torch.cat([losses.float(), order_losses.unsqueeze(1)], dim=1)

    def loss(self, output: torch.Tensor, batch: Batch) -> Mapping[str, Part]:
        """Mean of the masked tokens' losses, 0 where there are none; sum of the samples' losses and their number."""
        mask = batch["loss_mask"]
        losses = output[:, : mask.size(1)].float()
        total, count = (losses * mask).sum(), mask.sum()
        mean = Part(total / count.clamp(min=1), torch.ones_like(count))
        parts = {"lm": Part(total, count) if self.per_token else mean}
        if self.has_binary_head:
            order = output[:, mask.size(1)]
            parts["order"] = Part(order.sum(), torch.full_like(mask.sum(), order.numel()))
        return parts


def _of_random_tokens(samples: Batch) -> Batch:
    """A batch of the same cost from `data.random_tokens`: one token in seven is asked for, none is hidden."""
    tokens, positions = samples["tokens"], samples["position_ids"]
    return {
        "text": tokens,
        "types": (positions >= tokens.size(1) // 2).long(),
        "labels": samples["labels"],
        "is_random": tokens[:, 0] % 2,
        "padding_mask": torch.ones_like(tokens),
        "loss_mask": (positions % 7 == 3).long(),
    }
