"""Tables of docs/benchmarks/results.md: what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from support.benchmark_data import Record, date_of, degrees, milliseconds, record, records
from support.pages import table

LENGTHS = {"gpt-345m": 1024, "bert-345m": 512, "llama3-8b": 8192}
"""Tokens of a sample where they are not 4,096."""
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
    ("H200", "2026-11-30-h200-experts", "Qwen3-30B-A3B, 12 layers, EP2", None),
    ("H200", "2026-11-30-h200-experts-2", "Qwen3-30B-A3B, 12 layers, EP2, FP8", None),
    ("H200", "2026-11-30-h200-experts-2", "Mixtral 8x7B, 4 layers, EP2", None),
    ("H200", "2026-11-30-h200-experts-2", "gpt-oss-20b, 12 layers, EP2", None),
    ("H200", "2026-11-30-h200-experts", "DeepSeek-V2-Lite, 14 layers, EP2", None),
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


def _percent(value: str) -> str:
    return f"{value} %" if value else "-"


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
                    milliseconds(ours),
                    _percent(ours["mfu_percent"]),
                    _tokens(ours),
                ),
                *(milliseconds(theirs), _percent(theirs["mfu_percent"]), f"{100 * ahead:.0f} %"),
                *(f"{ours['peak_gib'] or '-'}, {theirs['peak_gib'] or '-'}", date_of(ours)),
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
        lines.append([gpu, shown, row["layout"] or "-", row["batch"], milliseconds(row), _tokens(row), date_of(row)])
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
            lines.append([name, row["batch"], milliseconds(single), milliseconds(row), f"{times:.1f}", share])
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


def blocks() -> str:
    """A hundred steps of newer models' blocks at layouts of several GPUs, and on one."""
    quantities = ("first step apart", "last ten steps apart", "loss of the last ten")
    found = [records("losses", quantity=f"block: {each}") for each in quantities]
    return table(
        ["shape and layout", "first step apart", "last ten steps apart", "loss of the last ten", "date"],
        [
            [
                first["case"],
                first["value"],
                f"{last['value']} %",
                loss["value"],
                record("setups", setup=first["setup"])["date"],
            ]
            for first, last, loss in zip(*found, strict=True)
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


def optimizers() -> str:
    """After 200 steps, by optimizer and learning rate."""
    quantities = ("mean loss of steps 181 to 200", "validation loss at step 200")
    found = {each: records("losses", quantity=f"optimizer: {each}") for each in quantities}
    lines = [[own["case"], own["value"], beside["value"]] for own, beside in zip(*found.values(), strict=True)]
    return table(["optimizer and learning rate", *quantities], lines)


def long_rows(kind: str) -> str:
    """Cases of a file as rows."""
    return table(
        ["case", "what", "measured", "date"],
        [[row["case"], row["quantity"], f"{row['value']} {row['unit']}", date_of(row)] for row in records(kind)],
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


TABLES: dict[str, Callable[[], str]] = {
    "beside": beside,
    "other-models": other_models,
    "graphs": graphs,
    "same-losses": same_losses,
    "layouts-agree": layouts_agree,
    "blocks": blocks,
    "fp8-losses": fp8_losses,
    "optimizers": optimizers,
    "checkpoints": partial(long_rows, "checkpoints"),
    "generation": partial(long_rows, "generation"),
    "tokenize": partial(host, "tokenize"),
    "input": partial(host, "input"),
    "conversion": partial(host, "conversion", "conversion-7b"),
    "cpu": partial(host, "cpu"),
    "start-up": partial(host, "start-up"),
    "planning": partial(host, "tune", "sweep"),
}
