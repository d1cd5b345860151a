"""The model of memory of layers and losses that were measured and are no more: megatron-core's own cross entropy, and
torch's layers until 2026-11-24, which rotated queries and keys by torch.compile.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.planning.memory import layer, stages
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

BYTES_PER_LOGIT = 10
"""In its backward pass: the softmax and the compiler's copy of it to write to, in fp32, and the gradient in bf16."""


def plan_megatrons_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory be planned for megatron-core's cross entropy, until the test is over."""
    own = stages._last_moments

    def moments(
        job: JobSpec, held: dict[str, int], layers: Layers, sizes: Any, vocab: int
    ) -> list[tuple[str, dict[str, int]]]:
        loss = {**held, "logits": sizes.tokens * vocab * BYTES_PER_LOGIT, "temporary": 0}
        return [("loss", loss), *own(job, held, layers, sizes, vocab)]

    monkeypatch.setattr(stages, "_last_moments", moments)


def plan_compiled_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory be planned for torch's layers that rotate so, until the test is over."""
    own = layer.rotates_projection
    monkeypatch.setattr(
        layer, "rotates_projection", lambda job, layers: layers == "transformer_engine" and own(job, layers)
    )
