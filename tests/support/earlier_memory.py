"""The model of memory of layers and losses that were measured and are no more: megatron-core's own cross entropy, and
torch's layers until 2026-11-24, which rotated queries and keys by torch.compile.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.planning.memory import estimate_memory, layer_activations, stages
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers
from support.benchmark_data import Record
from support.reference_times import measured_job

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
    own = layer_activations.rotates_projection
    monkeypatch.setattr(
        layer_activations, "rotates_projection", lambda job, layers: layers == "transformer_engine" and own(job, layers)
    )


def earlier_peaks(row: Record) -> list[float]:
    """GiB of each stage of a row of memory.csv, as planned for such layers and such a loss."""
    job = measured_job(row)
    with pytest.MonkeyPatch.context() as patch:
        plan_megatrons_loss(patch)
        plan_compiled_rotation(patch)
        memory = estimate_memory(job, vocabulary(job).padded_size, cast(Layers, row["layers"]))
    return [stage.peak_bytes / 2**30 for stage in memory.stages]
