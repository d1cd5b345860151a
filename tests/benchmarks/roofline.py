"""Writes docs/benchmarks/roofline.md: for each row of the published table that we aim at, the least time that each part
of a step could take on an H200, what that allows, and what was measured.

    PYTHONPATH=tests python tests/benchmarks/roofline.py   # --check: only say whether the page is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.benchmark_data import record
from support.pages import table, write_or_check
from support.shipped import SHIPPED

from orchestrator.planning.flops import model_flops
from orchestrator.planning.hardware.devices import shipped
from orchestrator.planning.time.roofline import IDEAL, roofline
from orchestrator.planning.time.step import estimate_time, estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.loading import load_job

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "roofline.md"
PEAK = 989e12
"""Dense bf16 of the datasheet, FLOP/s."""
COMMUNICATION = ("tensor_parallel", "pipeline_transfer", "data_parallel")
"""Of these counts what nothing hides, even where all is hidden that can be: the last bucket's reduction, say."""


Measured = tuple[str, str]
"""Setup and name of a row of docs/benchmarks/data/steps.csv."""


@dataclass(frozen=True)
class Row:
    """A row of the bars. `plain`: plain megatron-core's steps with Transformer Engine, and with torch's attention
    (compiled where that was measured); `ours`: this project's.
    """

    name: str
    job: str
    settings: Mapping[str, object]
    bar: float
    plain: tuple[Measured | None, Measured | None] = (None, None)
    ours: Measured | None = None


def _layout(gpus: int, tp: int, pp: int, micro: int, sequences: int) -> dict[str, object]:
    return {
        "launch.gpus_per_node": gpus,
        "parallelism.tensor_model_parallel_size": tp,
        "parallelism.pipeline_model_parallel_size": pp,
        "parallelism.sequence_parallel": "true" if tp > 1 else "false",
        "batch.micro_batch_size": micro,
        "batch.global_batch_size": sequences,
    }


LAST_14 = {"parallelism.num_layers_in_last_pipeline_stage": 14}
FP8 = {"precision.fp8": "{}"}
EARLIER, ROTATED = "2026-11-20-earlier", "2026-11-23-h200-4"
PAIR, PAIR_IN_FP8 = "7.1B, 2 GPUs, TP2 SP, 4x1, bf16", "7.1B, 2 GPUs, TP2 SP, 4x1, FP8"
ROWS = (
    Row(
        "1.7B, 1 GPU, 4x1",
        "gpt-1.7b",
        _layout(1, 1, 1, 4, 4),
        56,
        ((EARLIER, "1.7B 4x1 TE"), (EARLIER, "1.7B 4x1, each layer compiled")),
        (ROTATED, "1.7B 4x1 TE, ours, rotated at once"),
    ),
    Row(
        "1.7B, DP4, 4x1",
        "gpt-1.7b",
        _layout(4, 1, 1, 4, 16),
        56,
        ((EARLIER, "1.7B DP4 4x1 TE"), (EARLIER, "1.7B DP4 4x1, each layer compiled")),
    ),
    Row(
        "7.1B, TP2, 4x1",
        "gpt-7.1b",
        _layout(2, 2, 1, 4, 4),
        55,
        (("2026-11-23-h200-3", PAIR), None),
        (ROTATED, "7.1B TP2 4x1 TE, ours, rotated at once"),
    ),
    Row(
        "7.1B, TP2 DP2, 4x1",
        "gpt-7.1b",
        _layout(4, 2, 1, 4, 8),
        55,
        ((EARLIER, "7.1B TP2 DP2 4x1 TE"), (EARLIER, "7.1B TP2 DP2 4x1 torch")),
        ("2026-11-22-h200", "gpt-7.1b TP2 PP1 DP2 SP 4x1 TE"),
    ),
    Row("7.1B, DP4, 2x1 (that batch without TP)", "gpt-7.1b", _layout(4, 1, 1, 2, 8), 58),
    Row(
        "16B, TP4, 4x1",
        "gpt-16b",
        _layout(4, 4, 1, 4, 4),
        55,
        ((EARLIER, "16B TP4 4x1 TE"), (EARLIER, "16B TP4 2x2 torch")),
    ),
    Row(
        "7.1B, TP2 PP2, 1x16",
        "gpt-7.1b",
        {**_layout(4, 2, 2, 1, 16), **LAST_14},
        50,
        ((EARLIER, "7.1B TP2 PP2 1x16 TE"), (EARLIER, "7.1B TP2 PP2 1x16 torch")),
        ("2026-11-21-h200-profiles", "gpt-7.1b TP2 PP2 DP1 SP 1x16 torch"),
    ),
    Row(
        "1.7B, 1 GPU, 4x1, FP8",
        "gpt-1.7b",
        {**_layout(1, 1, 1, 4, 4), **FP8},
        68,
        ((EARLIER, "1.7B 4x1 TE, FP8"), None),
        (ROTATED, "1.7B, 1 GPU, 4x1, FP8"),
    ),
    Row(
        "7.1B, TP2, 4x1, FP8",
        "gpt-7.1b",
        {**_layout(2, 2, 1, 4, 4), **FP8},
        75,
        (("2026-11-23-h200-3", PAIR_IN_FP8), None),
        (ROTATED, PAIR_IN_FP8),
    ),
    Row(
        "7.1B, TP2 DP2, 4x1, FP8",
        "gpt-7.1b",
        {**_layout(4, 2, 1, 4, 8), **FP8},
        75,
        ((EARLIER, "7.1B TP2 DP2 4x1 TE, FP8"), None),
    ),
)


@dataclass(frozen=True)
class Least:
    """Seconds of the parts of a row's step, what is planned for Transformer Engine's layers, and the model's FLOPs on
    each GPU."""

    parts: Mapping[str, float]
    planned: float
    flops: float

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def share(self, seconds: float) -> float:
        """Of the bf16 peak, in per cent."""
        return 100 * self.flops / seconds / PEAK


def least(row: Row) -> Least:
    """The roofline of a row on an H200 as shipped."""
    overrides = [f"model.preset={row.job}", *(f"{key}={value}" for key, value in row.settings.items())]
    job = load_job([SHIPPED["gpt-1.7b" if row.job == "gpt-1.7b" else "gpt-7.1b"]], overrides).job
    device, padded = shipped("H200"), vocabulary(job).padded_size
    assert device is not None
    ideal = estimate_with(job, padded, IDEAL, device).parts
    tokens = job.global_batch_size * job.tokens_per_sample
    return Least(
        parts={
            **roofline(job, padded, device),
            "communication": sum(ideal[part] for part in COMMUNICATION),
            "bubble": ideal["bubble"],
        },
        planned=estimate_time(job, padded, "transformer_engine", device).step_seconds,
        flops=model_flops(job, tokens, padded) / job.world_size,
    )


def page() -> str:
    """The text of the page."""
    found = [(row, least(row)) for row in ROWS]
    return TEXT.format(
        least=table(
            [
                *("row", "products", "attention", "norms, activations", "loss", "optimizer"),
                *("communication", "bubble", "least", "allows", "bar"),
            ],
            [
                [
                    row.name,
                    *(_ms(seconds) for seconds in it.parts.values()),
                    _ms(it.seconds),
                    f"{it.share(it.seconds):.1f} %",
                    f"{row.bar:g} %",
                ]
                for row, it in found
            ],
        ),
        measured=table(
            ["row", "least", "bar", "ours measured", "planned", "plain, Transformer Engine", "plain, torch", "to do"],
            [_beside(row, it) for row, it in found],
        ),
    )


def _beside(row: Row, it: Least) -> list[str]:
    def shown(ms: float | None) -> str:
        return "-" if ms is None else f"{ms:,.0f} ({it.share(ms / 1e3):.1f} %)"

    ours, *plain = _measured(row.ours, "orchestrator"), *(_measured(each, "megatron-core") for each in row.plain)
    best = min((ms for ms in (ours, *plain) if ms is not None), default=None)
    bar_ms = 1e3 * it.seconds * it.share(it.seconds) / row.bar
    to_do = "-" if best is None else f"{best - bar_ms:,.0f} ms" if best > bar_ms else "met"
    day = f" on {record('setups', setup=row.ours[0])['date']}" if row.ours else ""
    return [
        *(row.name, shown(1e3 * it.seconds), f"{bar_ms:,.0f} ({row.bar:g} %)", shown(ours) + day),
        *(shown(1e3 * it.planned), *map(shown, plain), to_do),
    ]


def _measured(row: Measured | None, software: str) -> float | None:
    """Milliseconds of a step."""
    return None if row is None else float(record("steps", setup=row[0], row=row[1], software=software)["ms"])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


TEXT = """# The roofline of a step on H200s

Written by `tests/benchmarks/roofline.py` from `planning.time.roofline` and the shipped H200; a test fails when it is
out of date. Vocabulary 131,072, sequence 4,096, random tokens; per cent are of the dense bf16 peak, 989 TFLOP/s, in
FP8 too.

## The least that each part could take, ms
{least}

Every kernel as fast as a large one of its kind (matrix products at 0.83 of the peak before tiles are cut, and at 0.72
where the GPU is at its [power limit](accuracy.md#the-power-limit); attention at 0.52 forward and 0.415 backward, memory
traffic at 0.88 of 4.8 TB/s: [where these come from](accuracy.md#what-the-constants-rest-on)), every byte moved once,
nothing recomputed, communication hidden wherever a layer can compute meanwhile: "communication" is what is left of it.
All of it at once is not reached by anybody; and kernels that are faster than those rates would raise it.

## Beside what was measured, ms and per cent of the peak
{measured}

"Planned" is `plan`'s estimate with Transformer Engine's layers. "Plain" is megatron-core 0.16.1 itself in the
smallest loop, with its Transformer Engine layers, or its own with torch's attention (1.7B in bf16: each layer under
torch.compile; 16B: 2x2). "To do" is from the fastest that was measured to the bar. Rows of TP2 alone, on two GPUs,
have the bar of those with DP2. Ours of 7.1B on four GPUs are from before the cross entropy had kernels of its own and
tensor parallelism overlapped, and with TP2 PP2 from stages of 15 layers each, as plain is; "least" and "planned" are
of 16 and 14, which `plan` advises. At twice the batch without TP (7.1B, 2x2, torch's layers) 1,434 ms were
[measured](accuracy.md#the-tuner).
"""


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
