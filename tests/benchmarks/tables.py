"""Writes the tables of docs/benchmarks/results.md and accuracy.md from the rows in docs/benchmarks/data, and from what
the models of memory and time say of these now.

    PYTHONPATH=tests python tests/benchmarks/tables.py             # --check: only say whether the pages are up to date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import cast

from support.benchmark_data import Record, degrees, record, records
from support.earlier_memory import earlier_peaks
from support.pages import filled, table
from support.reference_times import (
    GPT2_VOCAB,
    PADDED_VOCAB,
    PUBLISHED_KERNELS,
    Row,
    measured_job,
    measured_rows,
    published_rows,
)

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time.kernels.accesses import TRANSFORMER_ENGINE
from orchestrator.planning.time.kernels.attention import attention_seconds
from orchestrator.planning.time.step import estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.sections.runtime import Layers

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
LENGTHS = {"gpt-345m": 1024, "bert-345m": 512, "llama3-8b": 8192}
"""Tokens of a sample where they are not 4,096."""
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

BESIDE = (
    ("H200", "2026-11-23-h200-4", "1.7B, 1 GPU, 4x1, bf16", "1.7B 4x1 TE, ours, rotated at once"),
    ("H200", "2026-11-23-h200-4", "1.7B, 1 GPU, 4x1, FP8", None),
    ("H200", "2026-11-23-h200-4", "7.1B, 2 GPUs, TP2 SP, 4x1, bf16", "7.1B TP2 4x1 TE, ours, rotated at once"),
    ("H200", "2026-11-23-h200-4", "7.1B, 2 GPUs, TP2 SP, 4x1, FP8", None),
    ("H100", "2026-11-25-h100-2", "1.7B DP2, 4x1", "1.7B DP2 4x1 TE"),
    ("H100", "2026-11-25-h100-2", "7.1B TP2, 1x4", "7.1B TP2 1x4 TE"),
    ("H100", "2026-11-25-h100-2", "1.7B PP2 VP2, 2x8", "1.7B PP2 VP2 2x8 TE"),
    ("H100", "2026-11-26-h100", "Llama 1.7B, 1 GPU", None),
    ("H100", "2026-11-26-h100", "Llama 1.7B, DP2", None),
    ("H100", "2026-11-26-h100", "Llama 7.1B, TP2", None),
    ("H200", "2026-11-27-experts", "Qwen3-30B-A3B, 24 layers, EP4, turn 2", "Qwen3-30B-A3B, 24 layers, EP4, turn 1"),
    ("H200", "2026-11-27-experts", "Qwen3-30B-A3B, 24 layers, EP4, turn 4", "Qwen3-30B-A3B, 24 layers, EP4, turn 3"),
    ("H200", "2026-11-27-experts", "Qwen3-30B-A3B, 8 layers, EP2", None),
)
"""GPU, setup, the other program's row, and ours where it has another name."""

OTHER_MODELS = (
    ("1.7B", "2026-11-24-h200-2", "1.7B 8x2 TE"),
    ("1.7B, FlashAttention 4", "2026-11-24-h200-2", "1.7B 4x4 TE, FlashAttention 4"),
    ("1.7B, torch's layers", "2026-11-24-h200-3", "1.7B 4x4 torch"),
    ("7.1B", "2026-11-22-h200", "gpt-7.1b TP2 PP1 DP2 SP 4x1 TE"),
    ("7.1B, torch's layers", "2026-11-22-h200", "7.1B on 4 GPUs, 16 sequences: TP1 micro 2"),
    ("Llama 3 8B, 8 of its 32 layers", "2026-11-24-h200-2", "Llama 3 8B's 8 layers 1x4 TE"),
    ("Mixtral 8x7B, 3 of its 32 layers", "2026-11-24-h200-2", "Mixtral's, 3 layers, TE 1x4"),
    ("GPT 345M", "2026-11-24-h200-4", "345M 8x4 TE captured: next batch fetched while the GPU computes"),
    ("BERT 345M", "2026-11-24-h200-4", "BERT 345M 8x4 TE captured: next batch fetched while the GPU computes"),
    ("T5 220M", "2026-11-24-h200-4", "T5 220M 8x4 TE captured: next batch fetched while the GPU computes"),
    ("1.7B", "2026-11-25-h100", "1.7B DP2 4x2 TE"),
    ("1.7B", "2026-11-25-h100", "1.7B PP2 VP2 4x4 TE"),
    ("7.1B", "2026-11-25-h100", "7.1B PP2 1x16 TE"),
)
"""What a row is called, its setup and name."""


def _device(name: str) -> Device:
    found = shipped(name)
    assert found is not None
    return found


def _ms(row: Record) -> str:
    """The median or mean, and the fastest and the slowest step."""
    shown = f"{float(row['ms']):,.4g}" if float(row["ms"]) < 1e4 else f"{float(row['ms']):,.0f}"
    if not row["fastest_ms"]:
        return shown
    return f"{shown} ({float(row['fastest_ms']):,.4g} to {float(row['slowest_ms']):,.4g})"


def _tokens(row: Record) -> str:
    """Per second and GPU; a T5's are of two sequences, and not comparable."""
    if row["model"].startswith("t5"):
        return "-"
    degree = degrees(row["layout"])
    settings = dict(part.split("=", 1) for part in row["settings"].split("; ") if "=" in part)
    length = int(settings.get("model.seq_length", LENGTHS.get(row["model"], 4096)))
    micro, micro_batches = map(int, row["batch"].split("x"))
    of_replica = micro * micro_batches * length / (float(row["ms"]) / 1e3)
    return f"{of_replica / degree['TP'] / degree['PP'] / degree['CP']:,.0f}"


def _date(row: Record) -> str:
    return record("setups", setup=row["setup"])["date"]


def _percent(value: str) -> str:
    return f"{value} %" if value else "-"


def _signed(planned: float, measured: float) -> str:
    return f"{planned / measured - 1:+.1%}".replace("%", " %")


def beside() -> str:
    """Steps of ours, and of another program on the same GPUs."""
    lines = []
    for gpu, setup, name, own in BESIDE:
        [theirs] = [row for row in records("steps", setup=setup, row=name) if row["software"] != "orchestrator"]
        ours = record("steps", setup=setup, row=own or name, software="orchestrator")
        ahead = float(theirs["ms"]) / float(ours["ms"]) - 1
        lines.append(
            [
                *(
                    gpu,
                    name.partition(", turn")[0],
                    theirs["software"],
                    _ms(ours),
                    _percent(ours["mfu_percent"]),
                    _tokens(ours),
                ),
                *(_ms(theirs), _percent(theirs["mfu_percent"]), f"{100 * ahead:.0f} %"),
                *(f"{ours['peak_gib'] or '-'}, {theirs['peak_gib'] or '-'}", _date(ours)),
            ]
        )
    header = ["GPU", "job", "beside", "ours, ms", "MFU", "tokens/s per GPU", "other, ms", "MFU", "ahead by"]
    return table([*header, "GiB, ours and other", "date"], lines)


def other_models() -> str:
    """Further steps of ours."""
    lines = []
    for shown, setup, name in OTHER_MODELS:
        row = records("steps", setup=setup, row=name)[0]
        gpu = record("setups", setup=setup)["gpu"]
        lines.append([gpu, shown, row["layout"] or "-", row["batch"], _ms(row), _tokens(row), _date(row)])
    return table(["GPU", "job", "layout", "batch", "ms", "tokens/s per GPU", "date"], lines)


def graphs() -> str:
    """Steps whose kernels are started one by one, and captured."""
    lines = []
    for row in records("steps", setup="2026-11-23-h200-5"):
        name, _, how = row["row"].rpartition(": ")
        if how == "captured":
            single = record("steps", setup=row["setup"], row=f"{name}: kernels started one by one")
            times = float(single["ms"]) / float(row["ms"])
            share = f"{single['mfu_percent']} to {row['mfu_percent']} %"
            lines.append([name, row["batch"], _ms(single), _ms(row), f"{times:.1f}", share])
    return table(["job", "batch", "one by one, ms", "captured, ms", "times as fast", "MFU"], lines)


def same_losses() -> str:
    """Trainings of ours and of megatron-core from the same weights on the same samples."""
    cases: dict[tuple[str, str], dict[str, str]] = {}
    for row in records("losses"):
        if "test_same_losses.py" in row["command"]:
            cases.setdefault((row["setup"], row["case"]), {})[row["quantity"].removesuffix(", %")] = row["value"]
    names = ("first step apart", "steps 1 to 10, at most", "all steps, at most", "all steps, median")
    return table(
        ["job", "last ten steps apart", *names, "date"],
        [
            [
                *(case, f"{float(found['apart']):+.3f} %"),
                *(found.get(name, "-") for name in names),
                record("setups", setup=setup)["date"],
            ]
            for (setup, case), found in sorted(cases.items())
            if "apart" in found
        ],
    )


def layouts_agree() -> str:
    """The largest relative difference of losses and of gradient norms from one GPU."""
    found: dict[str, dict[str, list[float]]] = {}
    for setup in ("2026-11-22-h200", "2026-11-23-h200", "2026-11-23-h200-2", "2026-11-23-h200-3"):
        for row in records("losses", setup=setup, unit="largest relative difference"):
            case = row["case"].partition("; megatron-core")[0]
            found.setdefault(case, {}).setdefault(row["quantity"], []).append(float(row["value"]))
    return table(
        ["layout", "losses", "gradient norms"],
        [
            [
                case,
                *(
                    f"{max(of[name]):.1e}".replace("e-0", "e-") if name in of else "-"
                    for name in ("losses", "gradient norms")
                ),
            ]
            for case, of in found.items()
        ],
    )


def fp8_losses() -> str:
    """After 200 steps."""
    rows = records("losses", quantity="mean loss of steps 181 to 200")
    lines = []
    for row in rows:
        apart = [each["value"] for each in records("losses", case=row["case"], quantity="against bf16")]
        lines.append([row["case"], row["value"], f"{float(apart[0]):+.2f} %" if apart else ""])
    return table(["recipe", "mean loss of steps 181 to 200", "against bf16"], lines)


def long_rows(kind: str) -> str:
    """Cases of a file as rows."""
    return table(
        ["case", "what", "measured", "date"],
        [[row["case"], row["quantity"], f"{row['value']} {row['unit']}", _date(row)] for row in records(kind)],
    )


def host(*benchmarks: str) -> str:
    """Benchmarks that need no GPU."""
    rows = [row for name in benchmarks for row in records("host", benchmark=name)]
    quantities = list(dict.fromkeys((row["quantity"], row["unit"]) for row in rows))
    cases = dict.fromkeys((row["setup"], row["case"]) for row in rows)
    return table(
        ["", *(f"{name}, {unit}" if unit else name for name, unit in quantities)],
        [[case, *(_cell(rows, setup, case, quantity) for quantity, _ in quantities)] for setup, case in cases],
    )


def _cell(rows: Sequence[Record], setup: str, case: str, quantity: str) -> str:
    found = [row["value"] for row in rows if (row["setup"], row["case"], row["quantity"]) == (setup, case, quantity)]
    return found[0] if found else "-"


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
        lines.append([row.label, _ms(found), f"{1e3 * planned:,.0f}", _signed(planned, row.seconds)])
    return table(["step", "measured, ms", "planned, ms", "miss"], lines)


def planned_then(rows: Iterable[Record]) -> str:
    """Rows that the model of time is not held against, with the plan of their day."""
    lines = []
    for row in rows:
        known = bool(row["ms"] and row["planned_ms"])
        miss = _signed(float(row["planned_ms"]), float(row["ms"])) if known else "-"
        measured = _ms(row) if row["ms"] else row["note"]
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


RESULTS: dict[str, Callable[[], str]] = {
    "beside": beside,
    "other-models": other_models,
    "graphs": graphs,
    "same-losses": same_losses,
    "layouts-agree": layouts_agree,
    "fp8-losses": fp8_losses,
    "checkpoints": partial(long_rows, "checkpoints"),
    "generation": partial(long_rows, "generation"),
    "tokenize": partial(host, "tokenize"),
    "input": partial(host, "input"),
    "conversion": partial(host, "conversion", "conversion-7b"),
    "cpu": partial(host, "cpu"),
    "start-up": partial(host, "start-up"),
    "planning": partial(host, "tune", "sweep"),
}
ACCURACY: dict[str, Callable[[], str]] = {
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
}
PAGES = {"results.md": RESULTS, "accuracy.md": ACCURACY}


def current(name: str) -> str:
    """A page with its tables as they are now."""
    return filled((FOLDER / name).read_text(encoding="utf-8"), PAGES[name])


def main() -> int:
    """Write the pages, or with `--check` only look at them; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is out of date")
    check, stale = parser.parse_args().check, 0
    for name in PAGES:
        text = current(name)
        stale += text != (FOLDER / name).read_text(encoding="utf-8")
        if not check:
            (FOLDER / name).write_text(text, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
