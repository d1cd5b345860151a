"""A report for people: lines and tables, and the same as a page in Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.bench.report import RECOMPUTE, Report
from orchestrator.launch.machine import driver_version
from orchestrator.planning.hardware import computing_unit
from orchestrator.quantities import amount, memory_size

Table = list[list[str]]
"""Rows of cells; the first is the head."""

_FEW = 8


def headline(report: Report) -> list[str]:
    """Step time, speed and MFU, a line each."""
    result, steps = report.result, report.steps
    fastest, slowest = min(report.per_rank), max(report.per_rank)
    lines = [
        f"step: {_ms(report.step_seconds)} ms, median of {len(steps)} after {report.measured.request.warm_up} "
        f"({_ms(min(steps))} to {_ms(max(steps))})"
        + (f"; by rank {_ms(fastest)} to {_ms(slowest)}" if len(report.ranks) > 1 else ""),
        f"speed: {amount(report.tokens_per_second_per_gpu)} tokens/s and {amount(report.tflops_per_gpu)} TFLOP/s "
        f"per {computing_unit(result['device'])}{_mfu(report)}",
    ]
    if report.full_tflops_per_gpu is not None:
        mfu = "" if report.full_mfu is None else f", MFU {report.full_mfu:.1%}"
        full = f"{amount(report.full_tflops_per_gpu)} TFLOP/s{mfu}"
        lines.append(f"half of attention's scores are counted, as Megatron-LM does; in full: {full}")
    if report.predicted is not None:
        lines.append(
            f"plan: {_ms(report.predicted.step_seconds)} ms, "
            f"{_beside(report.predicted.step_seconds / report.step_seconds)} than measured"
        )
    return lines


def missing(report: Report) -> str:
    """What is missing in a measurement that ended early."""
    return "the trace" if report.profile is not None else "a step by part"


def _beside(ratio: float) -> str:
    return f"{abs(ratio - 1):.1%} {'longer' if ratio >= 1 else 'shorter'}"


def _mfu(report: Report) -> str:
    peak, dtype = report.result["peak_flops"], report.result["dtype"]
    if report.mfu is None:
        return ""
    against = f"of the {dtype} peak, {amount(peak / 1e12)} TFLOP/s dense"
    if (products := report.result["products"]) != dtype:
        of_experts = report.result.get("expert_products") or products
        but = f", but experts' in {of_experts}" if of_experts != products else ""
        return f"; {report.mfu:.1%} {against}, with matrix products in {products.upper()}{but}"
    return f"; MFU {report.mfu:.1%} {against}"


def parts_table(report: Report) -> Table:
    """The profiled step by part, next to the plan and the roofline, in ms; empty if no step was profiled."""
    if report.profile is None:
        return []
    whole = float(report.profile["seconds"])
    rows: Table = [["PART", "MEASURED, ms", "OF THE STEP", "PLAN, ms", "ROOFLINE, ms", "ABOVE IT, ms"]]
    for row in report.rows:
        above = _ms(row.lost) if row.roofline is not None and row.part != RECOMPUTE else "-"
        share = f"{row.measured / whole:.1%}" if row.measured is not None else "-"
        rows.append([row.name, _ms(row.measured), share, _ms(row.predicted), _ms(row.roofline), above])
    predicted = report.predicted.step_seconds if report.predicted else None
    least = sum(report.least.values()) if report.least else None
    above = _ms(whole - least) if least is not None else "-"
    rows.append(["the profiled step", _ms(whole), "100.0%", _ms(predicted), _ms(least), above])
    return rows


def after_the_parts(report: Report) -> list[str]:
    """What to know of the table of parts."""
    busiest, profile = report.busiest, report.profile
    if busiest is None or profile is None:
        return []
    compute = [float(rank["profile"]["compute_seconds"]) for rank in report.ranks]
    lines = []
    if len(report.ranks) > 1:
        lines.append(
            f"parts of rank {busiest['rank']}, which computed longest: {_ms(max(compute))} ms; "
            f"the others from {_ms(min(compute))} ms"
        )
    lines.append(f"the profiled step was {_beside(profile['seconds'] / report.step_seconds)} than the median")
    if profile["classified"] < 1:
        names = ", ".join(_short(each["name"]) for each in profile["unclassified"][:_FEW])
        lines.append(f"{1 - profile['classified']:.1%} of the kernels' time belongs to unknown kernels: {names}")
    worst = report.largest_loss
    if worst is not None:
        lines.append(f"largest loss: {worst.name}, {_ms(worst.lost)} ms above its roofline")
    elif report.device is None:
        lines.append(
            f"no plan and no roofline: {report.result['device']} is not known; `orchestrator calibrate` adds it"
        )
    return lines


def communication_table(report: Report) -> Table:
    """Collectives of the busiest rank; empty where there are none."""
    kinds = report.profile["communication"] if report.profile is not None else {}
    rows: Table = [["COMMUNICATION", "KERNELS", "RUNNING, ms", "NOT HIDDEN, ms"]]
    rows += [[kind, str(each["kernels"]), _ms(each["seconds"]), _ms(each["exposed"])] for kind, each in kinds.items()]
    return rows if kinds else []


def kernels_table(report: Report) -> Table:
    """The kernels that took longest; empty where no step was profiled."""
    if report.profile is None:
        return []
    rows: Table = [["LARGEST KERNELS", "PART", "TIMES", "ms"]]
    largest = report.profile["largest"]
    return rows + [[_short(each["name"]), each["part"], str(each["count"]), _ms(each["seconds"])] for each in largest]


def memory_table(report: Report) -> Table:
    """Peaks of each stage beside the plan's; empty on the CPU."""
    rows: Table = [["STAGE", "PEAK", "PLAN", "MISS", "TAKEN ON THE GPU", "PLAN"]]
    for stage in report.stage_memory():
        peak, planned = stage["peak_bytes"], stage["predicted_peak_bytes"]
        miss = f"{planned / peak - 1:+.1%}" if peak and planned else "-"
        rows.append(
            [
                str(stage["pp"]),
                _gib(peak),
                _gib(planned),
                miss,
                _gib(stage["used_bytes"]),
                _gib(stage["predicted_used_bytes"]),
            ]
        )
    return rows if len(rows) > 1 else []


def page(report: Report, resolved: str, command: str) -> str:
    """The whole measurement as Markdown. `resolved`: the job as it was measured, in JSON; `command`: what was typed."""
    job, result = report.measured.job, report.result
    count = len(report.ranks)
    what = result["device"] if result["device"] != "cpu" else "the CPU"
    lines = [
        f"# {datetime.now(UTC).date()}: {job.name.removesuffix('-bench')} on {count} x {what}",
        "",
        f"`{command}`",
        "",
        *(f"- {line}" for line in headline(report)),
        "",
    ]
    if report.measured.failure is not None:
        lines += [f"**{missing(report).capitalize()} was not measured: the log of the run says why.**", ""]
    if parts := parts_table(report):
        lines += ["## The step by part", *_markdown(parts), "", *(f"- {line}" for line in after_the_parts(report)), ""]
        lines += _roofline_words(report)
    for title, table in (
        ("Communication", communication_table(report)),
        ("Memory", memory_table(report)),
        ("Largest kernels", kernels_table(report)),
    ):
        lines += ["", f"## {title}", *_markdown(table)] if table else []
    lines += ["", "## Setup", *_markdown([["", ""], *([name, f"{value}"] for name, value in _setup(report))])]
    lines += ["", f"FLOPs: {result['formula']}; {result['flops_per_step']:.6g} in a step over all ranks.", ""]
    lines += ["The measured job, without fields that are not set:", "", *_sections(json.loads(resolved)), ""]
    return "\n".join(lines)


def _sections(resolved: Mapping[str, Any]) -> list[str]:
    """A line for each section of the job that shapes a step."""
    lines = []
    for section in ("model", "parallelism", "batch", "precision", "optimizer", "runtime", "data"):
        set_ones = {key: each for key, each in resolved[section].items() if each is not None and each != {}}
        lines.append(f"- {section}: " + ", ".join(f"{key} {_plain(each)}" for key, each in set_ones.items()))
    return lines


def _roofline_words(report: Report) -> list[str]:
    if report.device is None:
        return []
    reached = report.device.efficiency
    attention = f"{reached.fused_attention_forward:.2f} and {reached.fused_attention_backward:.3f}"
    return [
        f"Roofline: every kernel as fast as a large one of its kind on {report.device.name} (matrix products "
        f"{reached.gemm:.2f} of the datasheet's peak, attention {attention}, memory {reached.memory:.2f} of its "
        "bandwidth), every byte moved once, all communication hidden, the GPU never idle.",
    ]


def _setup(report: Report) -> list[tuple[str, Any]]:
    """Everything that the figures depend on, flat."""
    setup = report.result["setup"]
    found: list[tuple[str, Any]] = [("date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")]
    found += [("driver", driver)] if (driver := driver_version()) else []
    for name, value in setup.items():
        if name == "choices":
            found.append(("chosen", ", ".join(f"{key}: {_plain(each)}" for key, each in value.items())))
        elif isinstance(value, dict):
            found += [(key, f"`{each}`" if name == "environment" else each) for key, each in value.items()]
        else:
            found.append((name.replace("_", " "), value))
    return found


def _markdown(table: Sequence[Sequence[str]]) -> list[str]:
    head, *rows = [[cell.replace("|", "\\|") for cell in row] for row in table]
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(name: str) -> str:
    """A kernel's name without its C++ namespaces and types."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    return plain if len(plain) <= 90 else plain[:89] + "…"


def _ms(seconds: float | None) -> str:
    """Milliseconds without their unit; digits enough for a step on the CPU."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.{1 if abs(seconds) >= 0.01 else 2}f}"


def _gib(count: int | None) -> str:
    return "-" if count is None else memory_size(count)
