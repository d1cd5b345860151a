"""Tables of docs/benchmarks/accuracy.md: what the models of memory and time say now of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import cast

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time.kernels.accesses import TRANSFORMER_ENGINE
from orchestrator.planning.time.kernels.attention import attention_seconds
from orchestrator.planning.time.step import estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.sections.runtime import Layers
from support.benchmark_data import Record, milliseconds, record, records
from support.earlier_memory import earlier_peaks
from support.pages import table
from support.published_experts import HELD_OUT, newest, pairs_in_order, published_steps
from support.reference_times import (
    GPT2_VOCAB,
    PADDED_VOCAB,
    PUBLISHED_KERNELS,
    Row,
    measured_job,
    measured_rows,
    published_rows,
)

SETS = {
    "own": "H200",
    "h200": "H200",
    "captured": "H200",
    "host-bound": "H200",
    "two-h100s": "H100",
    "other-h100s": "H100",
    "shared-sequences": "H100",
    "offloading": "H100",
    "slow-host": "H100",
}
"""Sets of steps, and the GPU that they are planned for."""


def _device(name: str) -> Device:
    found = shipped(name)
    assert found is not None
    return found


def _signed(planned: float, measured: float) -> str:
    return f"{planned / measured - 1:+.1%}".replace("%", " %")


def _planned(row: Row, gpu: str, of: str) -> float:
    device, vocab = _device(gpu), GPT2_VOCAB if of == "captured" else PADDED_VOCAB
    if row.host_start_seconds is not None:
        device = replace(device, efficiency=replace(device.efficiency, launch=row.host_start_seconds))
    return estimate_with(row.job, vocab, row.kernels, device).step_seconds


def time_summary() -> str:
    """How far the plan of each set is from what was measured."""
    lines = []
    for of, gpu in SETS.items():
        misses = [_planned(row, gpu, of) / row.seconds - 1 for row in measured_rows(of)]
        lines.append([f"`{of}`", gpu, *_spread(misses)])
    misses = [
        estimate_with(row.job, PADDED_VOCAB, PUBLISHED_KERNELS, _device("H100")).tflops_per_gpu / row.tflops_per_gpu - 1
        for row in published_rows()
    ]
    lines.append(["Megatron-LM's published table ([each row](scaling.md))", "H100", *_spread(misses)])
    return table(["set", "GPU", "rows", "mean miss", "largest miss"], lines)


def _spread(misses: Sequence[float]) -> list[str]:
    largest = max(misses, key=abs)
    return [
        str(len(misses)),
        f"{fmean(map(abs, misses)):.1%}".replace("%", " %"),
        f"{largest:+.1%}".replace("%", " %"),
    ]


def time_rows(of: str) -> str:
    """The rows of a set beside what is planned now."""
    lines = []
    for found, row in zip(records("steps", set=of), measured_rows(of), strict=True):
        planned = _planned(row, SETS[of], of)
        lines.append([row.label, milliseconds(found), f"{1e3 * planned:,.0f}", _signed(planned, row.seconds)])
    return table(["step", "measured, ms", "planned, ms", "miss"], lines)


def planned_then(rows: Iterable[Record]) -> str:
    """Rows that the model of time is not held against, with the plan of their day."""
    lines = []
    for row in rows:
        known = bool(row["ms"] and row["planned_ms"])
        miss = _signed(float(row["planned_ms"]), float(row["ms"])) if known else "-"
        measured = milliseconds(row) if row["ms"] else row["note"]
        lines.append([row["row"], measured, f"{float(row['planned_ms']):,.0f}" if row["planned_ms"] else "-", miss])
    return table(["step", "measured, ms", "planned then, ms", "miss"], lines)


def _others_planned() -> list[Record]:
    days = ("2026-11-24-h200-2", "2026-11-24-h200-3", "2026-11-21-parallelism-h200", "2026-11-27-experts")
    return [row for day in days for row in records("steps", setup=day, set="") if row["planned_ms"]]


def _configurations() -> list[Record]:
    """Of each configuration of 20 to 22 November 2026 the newest row."""
    days = ("2026-11-20-time-model", "2026-11-21-h200-profiles", "2026-11-22-h200")
    found = [row for day in days for row in records("steps", setup=day) if "test_predicted_time" in row["command"]]
    return list({row["row"]: row for row in found}.values())


def _alone() -> list[Record]:
    return [row for row in records("steps", setup="2026-11-24-h200-5") if "one rank alone" in row["row"]]


def _sweeps(setup: str, test: str) -> list[Record]:
    return [row for row in records("steps", setup=setup) if test in row["command"]]


def memory_now() -> str:
    """Peaks of steps that today's runtime takes, beside what is planned now."""
    lines = []
    for of, gpu in SETS.items():
        for found in records("steps", set=of):
            if not found["peak_gib"] or found["kernels"] or found["software"] != "orchestrator":
                continue
            job = measured_job(found)
            memory = estimate_memory(job, vocabulary(job).padded_size, cast(Layers, found["layers"]))
            planned, measured = memory.peak_bytes / 2**30, float(found["peak_gib"])
            lines.append([gpu, found["row"], f"{measured:.1f}", f"{planned:.1f}", _signed(planned, measured)])
    return table(["GPU", "step", "measured, GiB", "planned, GiB", "miss"], lines)


def memory_then() -> str:
    """The configurations of this runtime of 20 to 22 November, with the plan of that day."""
    lines, seen = [], set()
    for row in reversed(records("memory", set="")):
        key = tuple(row[name] for name in ("model", "layout", "batch", "layers", "settings", "stage"))
        if row["planned_gib"] and key not in seen:
            seen.add(key)
            layout = f"{row['layout'] or 'one GPU'}{', stage ' + row['stage'] if row['stage'] else ''}"
            on_gpu = f"{row['on_gpu_gib']} ({row['planned_on_gpu_gib']})" if row["on_gpu_gib"] else "-"
            peaks = [row["peak_gib"], row["planned_gib"], _signed(float(row["planned_gib"]), float(row["peak_gib"]))]
            shown = row["settings"].replace("runtime.", "").replace("parallelism.", "")
            lines.append([row["model"], layout, row["batch"], row["layers"], shown, *peaks, on_gpu])
    header = ["model", "layout", "batch", "layers", "settings", "measured, GiB", "planned", "miss"]
    return table([*header, "taken on the GPU (planned)"], lines[::-1])


def memory_earlier() -> str:
    """Rows that were known when the model of memory was written, and what it says of such layers and losses now."""
    lines = []
    for row in records("memory", set="earlier"):
        measured, stages = float(row["peak_gib"]), earlier_peaks(row)
        errors = " and ".join(_signed(stage, measured) for stage in stages)
        shown = " and ".join(f"{stage:.2f}" for stage in stages)
        lines.append(
            [row["model"], row["layout"] or "one GPU", row["batch"], row["layers"], str(measured), shown, errors]
        )
    return table(["model", "layout", "batch", "layers", "measured, GiB", "planned", "miss"], lines)


def long_attention() -> str:
    """Attention of long sequences beside what is planned now."""
    lines = []
    for forward in records("kernels", setup="2026-11-25-h100-2", quantity="forward"):
        case = forward["case"].removeprefix("attention, causal, ")
        if forward["unit"] != "us":
            continue
        backward = record("kernels", case=forward["case"], quantity="backward", unit="us")
        heads, width, length = (int(part.replace(",", "")) for part in case.split() if part[0].isdigit())
        found = attention_seconds(1, length, heads, width, _device("H100"), "bf16", TRANSFORMER_ENGINE)
        cells = [case]
        for row, planned in ((forward, found.forward), (backward, found.backward)):
            cells += [f"{float(row['value']) / 1e3:,.3f}", _signed(planned, float(row["value"]) * 1e-6)]
        lines.append(cells)
    return table(["one causal sequence", "forward, ms", "planned", "backward, ms", "planned"], lines)


def power_limit() -> str:
    """What products reach, one after the other."""
    names = ("at once", "after 50 ms", "from 120 ms on")
    cases = dict.fromkeys(row["case"] for row in records("kernels", unit="TFLOP/s"))
    return table(
        ["TFLOP/s", *names],
        [[case, *(record("kernels", case=case, quantity=name)["value"] for name in names)] for case in cases],
    )


def published() -> str:
    """Training speeds that others published beside the plan."""
    lines = []
    for row in records("published", unit="tokens/s per GPU"):
        planned, measured = float(row["planned"]), float(row["published"])
        lines.append(
            [
                *(row["gpu"], row["precision"], row["model"], row["source"], row["gpus"], row["layout"] or "-"),
                *(f"{measured:,.0f}", f"{planned:,.0f}", _signed(planned, measured)),
            ]
        )
    header = ["GPU", "precision", "model", "from", "GPUs", "layout", "published, tokens/s per GPU", "planned", "miss"]
    return table(header, lines)


def published_experts() -> str:
    """Training speeds of models with experts that others published beside what is planned now."""
    lines = []
    for step in published_steps():
        row, planned, then = step.record, step.planned(), step.record["planned_2026_11_25"]
        lines.append(
            [
                *(row[name] for name in ("gpu", "precision", "model")),
                *(f"{row['source']} {row['release']}", row["gpus"], row["layout"], row["software"] or "-"),
                *(f"{step.published:,.0f}", f"{planned:,.0f}", _signed(planned, step.published)),
                _signed(float(then), step.published) if then else "-",
            ]
        )
    header = ["GPU", "precision", "model", "from", "GPUs", "layout", "software", "published, tokens/s per GPU"]
    return table([*header, "planned", "miss", "miss of 2026-11-25"], lines)


def published_experts_summary() -> str:
    """How far the plan is from them, and how many pairs of one GPU and precision it puts in their order."""
    steps = published_steps()
    planned = {step: step.planned() for step in steps}
    sets = {
        "rows of 2026-11-25": [step for step in steps if step.was_planned],
        "the newest of each model, GPU and width of numbers": newest(steps),
        "all": steps,
        f"release {HELD_OUT}, which the plan was not changed for": [
            step for step in steps if step.record["release"] == HELD_OUT
        ],
    }
    lines = []
    for name, each in sets.items():
        misses = [planned[step] / step.published - 1 for step in each]
        rows, mean, largest = _spread(misses)
        middle = f"{median(map(abs, misses)):.1%}".replace("%", " %")
        kept, pairs = pairs_in_order(each, planned)
        lines.append([name, rows, mean, middle, largest, f"{kept} of {pairs}"])
    return table(["rows", "number", "mean miss", "median", "largest miss", "pairs in order"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "time-summary": time_summary,
    **{f"time-{of}": partial(time_rows, of) for of in SETS},
    "time-others": lambda: planned_then(_others_planned()),
    "time-configurations": lambda: planned_then(_configurations()),
    "time-alone": lambda: planned_then(_alone()),
    "tuner-h200-4": lambda: planned_then(_sweeps("2026-11-22-h200", "test_tuner")),
    "tuner-h200-1": lambda: planned_then(_sweeps("2026-11-24-h200", "orchestrator tune")),
    "tuner-h100-2": lambda: planned_then(_sweeps("2026-11-25-h100-2", "test_tuner")),
    "memory-now": memory_now,
    "memory-then": memory_then,
    "memory-earlier": memory_earlier,
    "long-attention": long_attention,
    "power-limit": power_limit,
    "published": published,
    "published-experts": published_experts,
    "published-experts-summary": published_experts_summary,
}
