"""The training step of a task: cross entropy of the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from orchestrator.runtime.steps.base import Batch, Part
from orchestrator.spec.sections.task import TaskSpec

_FIELDS = ("text", "types", "padding_mask")


class RightAnswer:
    """Cross entropy over the answers of each example that has a label, and how many are answered rightly."""

    parts = ("answer",)
    metrics = ("accuracy",)

    def __init__(self, task: TaskSpec) -> None:
        self.classes, self.sequences = task.classes, task.sequences_per_example

    def get_batch(self, samples: Batch) -> Batch:
        """`text`, `types` (which part a token is of) and `padding_mask` (0 where a sequence is filled up), [b · c, s],
        the c sequences of an example next to each other; `label`, [b], negative where there is none."""
        if "tokens" in samples:
            samples = self._of_random_tokens(samples)
        return {**{name: samples[name].flatten(0, 1) for name in _FIELDS}, "label": samples["label"]}

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """On the last stage the scores, [b · c, scores of a sequence]."""
        output: torch.Tensor = model(batch["text"], batch["padding_mask"], tokentype_ids=batch["types"])
        return output

    def loss(self, output: torch.Tensor, batch: Batch) -> Mapping[str, Part]:
        """Sum of the examples' losses and their number; of these, those that are answered rightly."""
        label = batch["label"]
        counts = label >= 0
        scores = output.float().view(-1, self.classes)
        losses = functional.cross_entropy(scores, label.clamp(min=0), reduction="none")
        right = (scores.argmax(dim=1) == label) & counts
        return {
            "answer": Part((losses * counts).sum(), counts.sum()),
            "accuracy": Part(right.sum(), counts.sum()),
        }

    def _of_random_tokens(self, samples: Batch) -> Batch:
        """A batch of the same cost from `data.random_tokens`: every option of an example is the same."""
        tokens = samples["tokens"].unsqueeze(1).expand(-1, self.sequences, -1)
        types = (samples["position_ids"] >= tokens.size(2) // 2).long().unsqueeze(1).expand_as(tokens)
        label = samples["tokens"][:, 0] % self.classes
        return {"text": tokens, "types": types, "padding_mask": torch.ones_like(tokens), "label": label}
