"""Step times that were measured or published, as jobs: what the model of time is held against.

docs/benchmarks/2026-11-20-time-model.md says where each comes from and what is assumed about it, and
2026-11-21-h200-profiles.md what changed since; the rows of 7.1B TP2 alone are in 2026-11-23-h200-2.md and -4.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class Row:
    """One measured configuration."""

    label: str
    job: JobSpec
    kernels: Kernels
    seconds: float

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
    preset: str, *, tp: int = 1, pp: int = 1, dp: int = 1, vp: int | None = None, micro: int, batch: int, nodes: int = 1
) -> JobSpec:
    """A job of that layout on random tokens."""
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
"""
    ).job


def host_bound_rows() -> list[Row]:
    """Measured on one H200 with this project's runtime: 345M, which the host bounds, and 1.7B at the border
    (docs/benchmarks/2026-11-23-h200-3.md). Where a range was measured, its middle.
    """
    own = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    plain = {**own, "add_bias_linear": False, "position_embedding_type": "rope"}

    def small(batch: int, model: dict[str, object]) -> JobSpec:
        job = job_of("gpt-345m", micro=1, batch=batch)
        return job.model_copy(update={"model": job.model.model_copy(update=model)})

    return [
        Row("345M 1x1 TE, no biases, rope", small(1, plain), TRANSFORMER_ENGINE, 0.0603),
        Row("345M 1x1 TE", small(1, own), ADAM_IN_PASSES, 0.1045),
        Row("345M 1x1 torch", small(1, own), replace(TORCH, **_APART, **_TORCHS_ADAM), 0.1125),
        Row("345M 1x4 TE", small(4, own), ADAM_IN_PASSES, 0.355),
        Row("1.7B 1x1 TE", job_of("gpt-1.7b", micro=1, batch=1), ADAM_IN_PASSES, 0.119),
    ]


GPT2_VOCAB = 50304
"""Rows of the tables of `captured_rows`, padded."""


def captured_rows() -> list[Row]:
    """345M with micro-batches of 8 sequences as CUDA graphs, measured on H200s with this project's runtime
    (docs/benchmarks/2026-11-23-h200-6.md; -7.md, where one kernel drops and adds, and two machines' mean is taken).
    """
    captured = job_of("gpt-345m", micro=8, batch=32)
    captured = captured.model_copy(update={"runtime": captured.runtime.model_copy(update={"cuda_graphs": True})})

    def dropping(of_attention: float, of_hidden: float) -> JobSpec:
        model = {"attention_dropout": of_attention, "hidden_dropout": of_hidden}
        return captured.model_copy(update={"model": captured.model.model_copy(update=model)})

    earlier = replace(TRANSFORMER_ENGINE, dropout=ForwardBackward(6, 4.5))
    encoder = job_of("bert-345m", micro=8, batch=32)
    encoder = encoder.model_copy(update={"runtime": captured.runtime})
    return [
        Row("345M 4x8 TE captured, compiled dropout", dropping(0.1, 0.1), earlier, 0.1844),
        Row("345M 4x8 TE captured, compiled dropout, all scores kept", dropping(0.0, 0.1), earlier, 0.1747),
        Row("345M 4x8 TE captured, nothing dropped", dropping(0.0, 0.0), earlier, 0.1673),
        Row("345M 4x8 TE captured", dropping(0.1, 0.1), TRANSFORMER_ENGINE, 0.1778),
        Row("BERT 345M 4x8 TE captured", encoder, TRANSFORMER_ENGINE, 0.0991),
    ]


def h200_rows() -> list[Row]:
    """Measured on one and four H200s: plain megatron-core, and this project's runtime."""
    small = {(micro, batch): job_of("gpt-1.7b", micro=micro, batch=batch) for micro, batch in
             ((1, 4), (2, 4), (4, 4), (4, 32), (4, 192))}  # fmt: skip
    replicas = job_of("gpt-1.7b", dp=4, micro=4, batch=16)
    pair, wide = (job_of("gpt-7.1b", tp=2, dp=dp, micro=4, batch=4 * dp) for dp in (1, 2))
    deep = job_of("gpt-7.1b", tp=2, pp=2, micro=1, batch=16)
    large = {micro: job_of("gpt-16b", tp=4, micro=micro, batch=4) for micro in (2, 4)}
    return [
        Row("1.7B 1x4 torch", small[1, 4], PLAIN_TORCH, 0.451),
        Row("1.7B 2x2 torch", small[2, 4], PLAIN_TORCH, 0.423),
        Row("1.7B 4x1 torch", small[4, 4], PLAIN_TORCH, 0.408),
        Row("1.7B 4x8 torch", small[4, 32], PLAIN_TORCH, 2.964),
        Row("7.1B TP2 DP2 4x1 torch", wide, PLAIN_TORCH, 0.809),
        Row("7.1B TP2 PP2 1x16 torch", deep, PLAIN_TORCH, 1.896),
        Row("16B TP4 2x2 torch", large[2], PLAIN_TORCH, 0.940),
        Row("1.7B 4x1 TE", small[4, 4], PLAIN_TRANSFORMER_ENGINE, 0.382),
        Row("1.7B 4x8 TE", small[4, 32], PLAIN_TRANSFORMER_ENGINE, 2.919),
        Row("1.7B DP4 4x1 TE", replicas, PLAIN_TRANSFORMER_ENGINE, 0.394),
        Row("7.1B TP2 DP2 4x1 TE", wide, PLAIN_TRANSFORMER_ENGINE, 0.779),
        Row("7.1B TP2 PP2 1x16 TE", deep, PLAIN_TRANSFORMER_ENGINE, 1.906),
        Row("16B TP4 4x1 TE", large[4], PLAIN_TRANSFORMER_ENGINE, 0.871),
        Row("1.7B 4x48 torch, ours", small[4, 192], EARLIER_TORCH, 17.10),
        Row("1.7B 4x8 torch, ours", small[4, 32], EARLIER_TORCH, 2.90),
        Row("1.7B 4x8 TE, ours", small[4, 32], EARLIER_TRANSFORMER_ENGINE, 2.57),
        Row("7.1B TP2 4x1 TE, ours", pair, ADAM_IN_PASSES, 0.6986),
        Row(
            "7.1B TP2 4x1 TE, ours, overlapping",
            pair,
            replace(OVERLAPPING, projection=None, gelu=TORCHS_GELU, **_TORCHS_ADAM),
            0.6527,
        ),
        Row("1.7B 4x1 TE, ours, rotated at once", small[4, 4], TRANSFORMER_ENGINE, 0.3070),
        Row("7.1B TP2 4x1 TE, ours, rotated at once", pair, OVERLAPPING, 0.6365),
    ]


def own_rows() -> list[Row]:
    """Measured on H200s with this project's runtime: Transformer Engine's layers on one of them in one hour
    (docs/benchmarks/2026-11-24-h200-2.md), torch's on another (-3.md).
    """

    def row(
        label: str,
        seconds: float,
        preset: str,
        micro: int,
        batch: int,
        layers: Layers = "transformer_engine",
        num_layers: int | None = None,
        **runtime: Any,
    ) -> Row:
        job = job_of(preset, micro=micro, batch=batch)
        model = job.model.model_copy(update={"num_layers": num_layers or job.model.num_layers})
        job = job.model_copy(update={"model": model, "runtime": job.runtime.model_copy(update=runtime)})
        return Row(label, job, kernels_of(job, layers), seconds)

    flash = {"attention_backend": "flash"}
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return [
        row("1.7B 4x1 TE", 0.3113, "gpt-1.7b", 4, 4),
        row("1.7B 4x4 TE", 1.2003, "gpt-1.7b", 4, 16),
        row("1.7B 2x2 TE", 0.3184, "gpt-1.7b", 2, 4),
        row("1.7B 1x4 TE captured", 0.3235, "gpt-1.7b", 1, 4, cuda_graphs=True),
        row("1.7B 1x16 TE captured", 1.2470, "gpt-1.7b", 1, 16, cuda_graphs=True),
        row("1.7B 8x2 TE", 1.1915, "gpt-1.7b", 8, 16),
        row("1.7B 4x4 TE, all recomputed", 1.5249, "gpt-1.7b", 4, 16, **again),
        row("1.7B 4x4 TE, joined loss", 1.2632, "gpt-1.7b", 4, 16, fused_linear_cross_entropy=True),
        row("1.7B 4x4 TE, FlashAttention 4", 1.1773, "gpt-1.7b", 4, 16, **flash),
        row("1.7B 4x1 torch", 0.3171, "gpt-1.7b", 4, 4, "torch"),
        row("1.7B 4x4 torch", 1.2190, "gpt-1.7b", 4, 16, "torch"),
        row("1.7B 1x4 torch captured", 0.3272, "gpt-1.7b", 1, 4, "torch", cuda_graphs=True),
        row("7.1B's 8 layers 4x1 TE", 0.3937, "gpt-7.1b", 4, 4, num_layers=8),
        row("7.1B's 8 layers 2x4 TE", 0.7677, "gpt-7.1b", 2, 8, num_layers=8),
        row("7.1B's 8 layers 1x4 torch", 0.4039, "gpt-7.1b", 1, 4, "torch", num_layers=8),
        row("7.1B's 8 layers 4x1 TE, FlashAttention 4", 0.3907, "gpt-7.1b", 4, 4, num_layers=8, **flash),
        row("Llama 3 8B's 8 layers 1x4 TE", 0.8692, "llama3-8b", 1, 4, num_layers=8),
    ]


def _first_recomputed(job: JobSpec, layers: int) -> JobSpec:
    """So many layers of each stage or chunk."""
    again = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
    return job.model_copy(update={"runtime": job.runtime.model_copy(update=again)})


def two_h100s_rows() -> list[Row]:
    """Measured on two H100s with this project's runtime (docs/benchmarks/2026-11-25-h100.md): what the GPUs bound."""
    captured = job_of("gpt-1.7b", dp=2, micro=1, batch=16)
    captured = captured.model_copy(update={"runtime": captured.runtime.model_copy(update={"cuda_graphs": True})})

    def stages(letters: str, vp: int, micro: int) -> JobSpec:
        job = job_of("gpt-1.7b", pp=2, vp=vp, micro=micro, batch=16)
        parallelism = job.parallelism.model_copy(update={"pipeline_model_parallel_layout": letters})
        return job.model_copy(update={"parallelism": parallelism})

    deep = job_of("gpt-7.1b", pp=2, micro=1, batch=16)
    interleaved = _first_recomputed(job_of("gpt-7.1b", pp=2, vp=5, micro=1, batch=16), 1)
    split = _first_recomputed(job_of("gpt-1.7b", tp=2, micro=16, batch=16), 1)
    return [
        Row("1.7B DP2 4x2 TE", job_of("gpt-1.7b", dp=2, micro=4, batch=16), TRANSFORMER_ENGINE, 0.6329),
        Row("1.7B DP2 1x8 TE captured", captured, TRANSFORMER_ENGINE, 0.6471),
        Row("1.7B DP2 1x8 torch captured", captured, TORCH, 0.6633),
        Row("1.7B TP2 16x1 TE", split, OVERLAPPING, 0.6696),
        Row("1.7B PP2 VP6 2x8 TE", stages("Et*3|(t*2|)*10tL", 6, 2), TRANSFORMER_ENGINE, 0.7262),
        Row("1.7B PP2 VP3 2x8 TE", stages("Et*5|(t*4|)*4t*3L", 3, 2), TRANSFORMER_ENGINE, 0.7199),
        Row("1.7B PP2 VP6 4x4 TE", stages("Et*3|(t*2|)*10tL", 6, 4), TRANSFORMER_ENGINE, 0.6998),
        Row("1.7B PP2 VP2 4x4 TE", stages("Et*8|t*5|t*7|t*4L", 2, 4), TRANSFORMER_ENGINE, 0.6989),
        Row("7.1B PP2 1x16 TE", deep, TRANSFORMER_ENGINE, 2.6446),
        Row("7.1B PP2 VP5 1x16 TE", interleaved, TRANSFORMER_ENGINE, 2.8965),
        Row("7.1B PP2 VP5 1x16 torch", interleaved, TORCH, 2.9324),
    ]


def other_h100s_rows() -> list[Row]:
    """The same of two others, slower by 4 %, with a host as planned (docs/benchmarks/2026-11-25-h100-2.md)."""

    def of_7b(label: str, seconds: float, kernels: Kernels, recomputed: int = 0, **given: Any) -> Row:
        job = job_of("gpt-7.1b", batch=16, **given)
        return Row(f"7.1B {label}", _first_recomputed(job, recomputed) if recomputed else job, kernels, seconds)

    return [
        Row("1.7B DP2 4x1 TE", job_of("gpt-1.7b", dp=2, micro=4, batch=8), TRANSFORMER_ENGINE, 0.3295),
        Row("1.7B PP2 VP2 2x8 TE", job_of("gpt-1.7b", pp=2, vp=2, micro=2, batch=16), TRANSFORMER_ENGINE, 0.7429),
        Row("1.7B PP2 1x8 TE", job_of("gpt-1.7b", pp=2, micro=1, batch=8), TRANSFORMER_ENGINE, 0.4001),
        Row("7.1B TP2 1x4 TE", job_of("gpt-7.1b", tp=2, micro=1, batch=4), OVERLAPPING, 0.7180),
        of_7b("PP2 1x16 TE", 2.750, TRANSFORMER_ENGINE, pp=2, micro=1),
        of_7b("PP2 1x16 torch", 2.762, TORCH, pp=2, micro=1),
        of_7b("PP2 VP3 1x16 TE", 2.853, TRANSFORMER_ENGINE, 1, pp=2, vp=3, micro=1),
        of_7b("PP2 VP3 1x16 torch", 2.858, TORCH, 1, pp=2, vp=3, micro=1),
        of_7b("PP2 VP5 1x16 TE", 2.947, TRANSFORMER_ENGINE, 1, pp=2, vp=5, micro=1),
        of_7b("PP2 VP5 1x16 torch", 2.956, TORCH, 1, pp=2, vp=5, micro=1),
        of_7b("PP2 VP5 2x8 torch", 3.148, TORCH, 2, pp=2, vp=5, micro=2),
        of_7b("TP2 1x16 TE", 2.799, OVERLAPPING, tp=2, micro=1),
        of_7b("TP2 1x16 torch", 2.916, TORCH, tp=2, micro=1),
        of_7b("TP2 2x8 torch", 2.846, TORCH, 2, tp=2, micro=2),
    ]


def slow_host_rows() -> list[tuple[float, Row]]:
    """Measured there, on two machines whose hosts bound them, with the seconds in which `start_seconds` says that each
    started a kernel.
    """
    first, second = 15.5e-6, 12.6e-6

    def short() -> JobSpec:
        job = job_of("gpt-1.7b", micro=1, batch=16)
        return job.model_copy(update={"model": job.model.model_copy(update={"seq_length": 512})})

    replicas, split = job_of("gpt-1.7b", dp=2, micro=1, batch=16), job_of("gpt-7.1b", tp=2, micro=1, batch=16)
    return [
        (first, Row("1.7B 1x16 of 512 tokens, TE", short(), TRANSFORMER_ENGINE, 2.3130)),
        (first, Row("1.7B 1x16 of 512 tokens, torch", short(), TORCH, 1.2521)),
        (first, Row("1.7B DP2 1x8 TE", replicas, TRANSFORMER_ENGINE, 1.1336)),
        (first, Row("1.7B DP2 1x8 torch", replicas, TORCH, 0.8288)),
        (first, Row("7.1B TP2 1x16 torch", split, TORCH, 2.9366)),
        (second, Row("1.7B 1x16 of 512 tokens, TE, second host", short(), TRANSFORMER_ENGINE, 1.7310)),
        (second, Row("1.7B 1x16 of 512 tokens, torch, second host", short(), TORCH, 1.0571)),
    ]


def shared_sequence_rows() -> list[Row]:
    """1.7B under CP2 on two H100s (docs/benchmarks/2026-11-26-h100.md): long sequences, and short ones, whose ranks
    wait for their hosts. The middle of three and of four runs, those with torch's layers on one machine.
    """

    def of_length(length: int) -> JobSpec:
        job = job_of("gpt-1.7b", dp=2, micro=1, batch=4)
        model = job.model.model_copy(update={"seq_length": length})
        parallelism = job.parallelism.model_copy(update={"context_parallel_size": 2})
        return job.model_copy(update={"model": model, "parallelism": parallelism})

    return [
        Row("4 of 16,384 tokens, TE", of_length(16384), TRANSFORMER_ENGINE, 0.9765),
        Row("4 of 16,384 tokens, torch", of_length(16384), TORCH, 1.3616),
        Row("4 of 4,096 tokens, TE", of_length(4096), TRANSFORMER_ENGINE, 0.5085),
        Row("4 of 4,096 tokens, torch", of_length(4096), TORCH, 0.3788),
    ]


def offloading_rows() -> list[Row]:
    """1.7B 2x4 with some layers' activations in the host's memory, as it is started and through one queue (same page;
    of several runs the middle)."""

    def offloading(count: int, env: dict[str, str]) -> JobSpec:
        job = job_of("gpt-1.7b", micro=2, batch=8)
        runtime = job.runtime.model_copy(update={"cpu_offloading_num_layers": count})
        return job.model_copy(update={"runtime": runtime, "launch": job.launch.model_copy(update={"env": env})})

    measured = ((4, 0.6468, 0.7048), (8, 0.8072, 0.9378), (16, 1.4593, 1.4595))
    one = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return [
        row
        for count, seconds, in_order in measured
        for row in (
            Row(f"{count} layers", offloading(count, {}), TRANSFORMER_ENGINE, seconds),
            Row(f"{count} layers, one queue", offloading(count, one), TRANSFORMER_ENGINE, in_order),
        )
    ]


def published_rows() -> list[PublishedRow]:
    """Megatron-LM's table on H100s. It does not say micro-batches and virtual stages: assumed are four sequences at
    once without pipeline stages, else one, and one layer per virtual stage.
    """
    table = (
        ("1.7b", 24, 1, 1, 192, 408.8, 41),
        ("7.1b", 30, 2, 1, 192, 465.9, 47),
        ("16b", 32, 4, 1, 192, 489.1, 49),
        ("32b", 48, 8, 1, 192, 459.6, 46),
        ("70b", 84, 8, 2, 384, 419.7, 42),
        ("119b", 92, 8, 4, 768, 420.5, 43),
        ("177b", 96, 8, 6, 1152, 432.8, 44),
        ("314b", 96, 8, 8, 1536, 474.4, 48),
        ("462b", 112, 8, 16, 3072, 459.9, 47),
    )
    rows = []
    for model, layers, tp, pp, batch, tflops, mfu in table:
        vp = None if pp == 1 else layers // pp
        micro = 4 if pp == 1 else 1
        job = job_of(f"gpt-{model}", tp=tp, pp=pp, dp=48, vp=vp, micro=micro, batch=batch, nodes=tp * pp * 6)
        rows.append(PublishedRow(model.upper(), job, tflops, mfu))
    return rows
