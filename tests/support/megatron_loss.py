"""megatron-core's own cross entropy in the model of memory: what was measured with it is held against that."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.planning.memory import stages
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers

BYTES_PER_LOGIT = 10
"""In its backward pass: the softmax and the compiler's copy of it to write to, in fp32, and the gradient in bf16."""


def plan_megatrons_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory be planned for it, until the test is over."""
    own = stages._last_moments

    def moments(
        job: JobSpec, held: dict[str, int], layers: Layers, sizes: Any, vocab: int
    ) -> list[tuple[str, dict[str, int]]]:
        loss = {**held, "logits": sizes.tokens * vocab * BYTES_PER_LOGIT, "temporary": 0}
        return [("loss", loss), *own(job, held, layers, sizes, vocab)]

    monkeypatch.setattr(stages, "_last_moments", moments)
