"""Step times that were measured or published, as jobs: what the model of time is held against.

They are rows of docs/benchmarks/data; docs/benchmarks/accuracy.md shows them beside what is planned, and says what is
assumed about each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.time.fits.fitting import Observation
from orchestrator.planning.time.kernels.accesses import (
    OVERLAPPING,
    TORCH,
    TRANSFORMER_ENGINE,
    Kernels,
    kernels_of,
)
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.sections.runtime import Layers
from support.benchmark_data import Record, degrees, records

PADDED_VOCAB = 131072
UNFUSED_LOSS = ForwardBackward(38, 14)
"""Bytes per logit of megatron-core's cross entropy without torch.compile: to fp32 6, maximum 4, minus it 8, exponential
8, sum 4, divided by it 8; backwards times the gradient 8, to bf16 6."""
COMPILED_LOSS = ForwardBackward(40, 10)
"""The same under torch.compile."""
UNFUSED_ROPE = ForwardBackward(29, 29)
"""Per tensor: negate half and join (4), times cosine (2), times sine (2), add (3), join what is not rotated (2) are 13;
multiplying and joining take three times as long as their traffic."""
AFTER_TRANSFER = 2.5e-3
"""Seconds: megatron-core has the host wait for each transfer. In a profile of 7.1B TP2 PP2 the next kernel came 1.5 ms
after one, and the host was behind the GPU for some layers more."""
# Norm 4, clipping 8 or in two kernels 16, Adam 28, copy 6.
_TORCHS_ADAM, _TORCHS_ADAM_AFTER_TORCHS_CLIPPING = (
    {"optimizer": 46, "optimizer_launches": 2},
    {"optimizer": 54, "optimizer_launches": 8},
)
TORCHS_GELU = ForwardBackward(3, 4.3)
ROTATED_IN_PARTS = replace(TRANSFORMER_ENGINE, projection=None, gelu=TORCHS_GELU)
ADAM_IN_PASSES = replace(ROTATED_IN_PARTS, **_TORCHS_ADAM)
"""This project's runtime until 2026-11-23."""
_APART: dict[str, Any] = {"projection": None, "accumulation": 14}
"""RoPE by torch.compile, and weight gradients added behind their products."""
EARLIER_TORCH = replace(
    TORCH, **_APART, rope=UNFUSED_ROPE, loss=COMPILED_LOSS, gelu=TORCHS_GELU, **_TORCHS_ADAM_AFTER_TORCHS_CLIPPING
)
EARLIER_TRANSFORMER_ENGINE = replace(ADAM_IN_PASSES, loss=COMPILED_LOSS)
"""This project's runtime until 2026-11-22: megatron-core's cross entropy and rotation, too."""
PLAIN_TORCH = replace(EARLIER_TORCH, loss=UNFUSED_LOSS, after_transfer=AFTER_TRANSFER)
PLAIN_TRANSFORMER_ENGINE = replace(
    ADAM_IN_PASSES,
    rope=UNFUSED_ROPE,
    loss=UNFUSED_LOSS,
    accumulation=14,
    after_transfer=AFTER_TRANSFER,
)
"""Transformer Engine's layers under megatron-core's defaults: RoPE, cross entropy and accumulation are not fused."""
PUBLISHED_KERNELS = replace(
    PLAIN_TRANSFORMER_ENGINE, accumulation=18.5, after_transfer=0.0, overlaps_tensor_parallel=True
)
"""Megatron-LM in 2024: tensor parallelism overlapped, gradients added up in the matrix product; the bytes for this are
what the rows with micro-batches of one sequence say."""


_KERNELS = {
    ("megatron-core", "torch"): PLAIN_TORCH,
    ("megatron-core", "transformer_engine"): PLAIN_TRANSFORMER_ENGINE,
    ("until 2026-11-22", "torch"): EARLIER_TORCH,
    ("until 2026-11-22", "transformer_engine"): EARLIER_TRANSFORMER_ENGINE,
    ("until 2026-11-23", "torch"): replace(TORCH, **_APART, **_TORCHS_ADAM),
    ("until 2026-11-23", "transformer_engine"): ADAM_IN_PASSES,
    ("until 2026-11-23, overlapping", "transformer_engine"): replace(
        OVERLAPPING, projection=None, gelu=TORCHS_GELU, **_TORCHS_ADAM
    ),
    ("compiled dropout", "transformer_engine"): replace(TRANSFORMER_ENGINE, dropout=ForwardBackward(6, 4.5)),
}
"""By what ran a step, or the state of this runtime, and its layers; today's runtime has none here."""


@dataclass(frozen=True)
class Row:
    """One measured configuration. `host_start_seconds`: in which its host starts a kernel, where that was measured."""

    label: str
    job: JobSpec
    kernels: Kernels
    seconds: float
    host_start_seconds: float | None = None

    @property
    def observation(self) -> Observation:
        return Observation(self.job, PADDED_VOCAB, self.kernels, self.seconds)


@dataclass(frozen=True)
class PublishedRow:
    """One row of Megatron-LM's published table."""

    label: str
    job: JobSpec
    tflops_per_gpu: float
    mfu_percent: int


def job_of(
    preset: str,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    vp: int | None = None,
    micro: int,
    batch: int,
    nodes: int = 1,
    settings: Sequence[str] = (),
) -> JobSpec:
    """A job of that layout on random tokens; `settings` are `KEY=VALUE`."""
    gpus = tp * pp * dp // nodes
    return load_text(
        f"""\
name: row
model: {{preset: {preset}}}
parallelism:
  tensor_model_parallel_size: {tp}
  sequence_parallel: {str(tp > 1).lower()}
  pipeline_model_parallel_size: {pp}
  virtual_pipeline_model_parallel_size: {vp or "null"}
batch: {{micro_batch_size: {micro}, global_batch_size: {batch}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1e-4}}
schedule: {{train_iters: 10}}
launch: {{nodes: {nodes}, gpus_per_node: {gpus}}}
""",
        overrides=settings,
    ).job


GPT2_VOCAB = 50304
"""Rows of the tables of the steps of the set `captured`, padded."""


def measured_rows(of: str) -> list[Row]:
    """The steps in docs/benchmarks/data/steps.csv that belong to this set."""
    return [_measured_row(found) for found in records("steps", set=of)]


def _measured_row(found: Record) -> Row:
    job, layers = measured_job(found), cast(Layers, found["layers"])
    state = found["kernels"] or found["software"]
    start = float(found["host_start_us"]) * 1e-6 if found["host_start_us"] else None
    kernels = kernels_of(job, layers) if state == "orchestrator" else _KERNELS[state, layers]
    return Row(found["row"], job, kernels, float(found["ms"]) / 1e3, start)


def measured_job(found: Record) -> JobSpec:
    """The job of a row of steps.csv or memory.csv that has a layout and a batch."""
    degree, settings = degrees(found["layout"]), found["settings"].split("; ") if found["settings"] else []
    micro, micro_batches = map(int, found["batch"].split("x"))
    if degree["CP"] > 1:
        settings.append(f"parallelism.context_parallel_size={degree['CP']}")
    return job_of(
        found["model"],
        tp=degree["TP"],
        pp=degree["PP"],
        dp=degree["DP"] * degree["CP"],
        vp=degree["VP"] if degree["VP"] > 1 else None,
        micro=micro,
        batch=micro * micro_batches * degree["DP"],
        settings=settings,
    )


def published_rows() -> list[PublishedRow]:
    """Megatron-LM's table on H100s. It does not say micro-batches and virtual stages: assumed are four sequences at
    once without pipeline stages, else one, and one layer per virtual stage.
    """
    found = records("published", source="Megatron-LM table", unit="TFLOP/s per GPU")
    return [
        PublishedRow(row["model"], _published_job(row), float(row["published"]), int(row["mfu_percent"]))
        for row in found
    ]


def _published_job(row: Record) -> JobSpec:
    degree = degrees(row["layout"])
    tp, pp, dp = degree["TP"], degree["PP"], degree["DP"]
    layout = {"tp": tp, "pp": pp, "dp": dp, "batch": int(row["global_batch"]), "nodes": int(row["gpus"]) // 8}
    preset = f"gpt-{row['model'].lower()}"
    if pp == 1:
        return job_of(preset, micro=4, **layout)
    num_layers = job_of(preset, micro=1, **layout).model.num_layers
    return job_of(preset, micro=1, vp=num_layers // pp, **layout)
