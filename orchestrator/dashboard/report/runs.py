"""One run in a report: how it did, what it is, its curves, and what is known of its parts.

What cannot be read of a run is said in its place, and takes nothing else with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from orchestrator.dashboard.rendering import NOTHING, clock, count, disk, duration, exact, number, percent, size
from orchestrator.dashboard.report.document import Block, Curves, Facts, Lines, Paragraph, Section, section, table
from orchestrator.launch.event_messages import thinned
from orchestrator.review.charts.blend import blend_use, consumption_figure
from orchestrator.review.charts.catalogue import charts_with
from orchestrator.review.charts.curves import figure_of
from orchestrator.review.charts.plan_vs_actual import Unit, planned_of, references_of, rows_of
from orchestrator.review.charts.series import Series
from orchestrator.review.charts.timeline import marks_of
from orchestrator.review.compare import differences
from orchestrator.review.damage import readable
from orchestrator.review.overview import overview_of, parts_of_time
from orchestrator.review.redaction import Redaction
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.specs import fields_of
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.exits.causes import cause_of
from orchestrator.run_directory.results.record import results_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.goodput import goodput_of

_KEY_FACTS = (
    "model.architecture",
    "model.preset",
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.seq_length",
    "model.num_experts",
    "parallelism.tensor_model_parallel_size",
    "parallelism.pipeline_model_parallel_size",
    "parallelism.context_parallel_size",
    "parallelism.expert_model_parallel_size",
    "parallelism.data_parallel_size",
    "batch.micro_batch_size",
    "batch.global_batch_size",
    "schedule.train_iters",
    "schedule.train_samples",
    "schedule.train_tokens",
    "optimizer.name",
    "optimizer.lr",
    "optimizer.min_lr",
    "optimizer.weight_decay",
    "schedule.lr_decay_style",
    "schedule.lr_warmup_iters",
    "precision.dtype",
    "checkpoint.pretrained",
    "data.seed",
    "runtime.seed",
)
_MOST_METRICS = 60
_MOST_EVENTS = 80
_MOST_CHECKPOINTS = 20


def run_sections(
    summary: RunSummary, series: Series, discretion: Redaction, *, number: int, curves: bool
) -> list[Section]:
    """A run, part by part; `number` makes the names of its charts unique. Without `curves` it has none."""
    parts: list[tuple[str, Callable[[], list[Block | None]]]] = [
        ("Why it ended", lambda: _why(summary)),
        ("Curves", lambda: _curves(summary, series, number) if curves else []),
        ("Measured", lambda: [_measured(series)]),
        ("Spec", lambda: _spec(summary, discretion)),
        ("Plan and measurement", lambda: _planned(summary, series)),
        ("Where the time went", lambda: [_time(summary)]),
        ("Data", lambda: _data(summary.run, number, curves)),
        ("Checkpoints", lambda: [_checkpoints(summary.run)]),
        ("Evaluations", lambda: [_evaluations(summary.run)]),
        ("Events", lambda: _events(summary.run)),
    ]
    found = [Section(summary.key, 1, tuple(_head(summary)), summary.state)]
    for title, made in parts:
        blocks, problem = readable(made)
        part = section(
            title, blocks if problem is None and blocks is not None else [Paragraph(str(problem), "problem")]
        )
        if part is not None:
            found.append(part)
    return found


def steps(summary: RunSummary) -> str:
    """How many steps of how many; nothing for a run that holds weights from elsewhere."""
    total = f" of {exact(summary.train_iters)}" if summary.train_iters else ""
    return f"{exact(summary.iteration)}{total}" if summary.trains else ""


def _head(summary: RunSummary) -> list[Block]:
    overview, problem = readable(lambda: overview_of(summary, ()))
    pairs = [
        ("State", summary.description),
        ("Steps", steps(summary)),
        ("Created", clock(summary.created)),
        ("Last start", clock(summary.launched)),
        ("Ended", clock(summary.ended)),
        ("By", summary.user or NOTHING),
        ("Launches", exact(summary.launches)),
        ("Sweep", f"{summary.sweep}, cell {summary.cell}" if summary.sweep else ""),
        ("Code", _code(summary.run)),
        ("Folder", str(summary.run.path)),
    ]
    if overview is not None:
        ranks = f"{exact(overview.world_size)} on {overview.device}" if overview.world_size else ""
        pairs += [
            ("Ranks", ranks),
            ("Parameters", count(overview.parameters) if overview.parameters else ""),
            ("Parameters of rank 0", count(overview.parameters_of_rank_0) if overview.parameters_of_rank_0 else ""),
            ("Weights from", overview.parent.text if overview.parent is not None else ""),
            ("Skipped steps", exact(overview.skipped_steps) if overview.skipped_steps else ""),
        ]
    values = summary.values
    pairs += [
        ("Loss", number(values.get("train/loss"))),
        ("Validation loss", number(values["validation/loss"]) if "validation/loss" in values else ""),
        ("Total tokens per second", count(values.get("throughput/tokens_per_second"))),
        ("Goodput", percent(summary.goodput)),
    ]
    blocks: list[Block] = [Facts(tuple((name, text) for name, text in pairs if text))]
    troubles = [text for text in (summary.problem, problem) if text]
    return [*blocks, *(Paragraph(text, "problem") for text in troubles)]


def _code(run: RunDir) -> str:
    """The commits that ran, as code.json has them."""
    try:
        record: Any = run.read_json(run.path / "code.json")
        found = [
            f"{each['used_by']} {each['commit'][:12]}{' with changes' if each['dirty'] else ''}"
            for each in record["repositories"]
        ]
        return ", ".join([f"orchestrator {record['version']}", *found])
    except (OSError, ValueError, LookupError, TypeError):
        return NOTHING


def _why(summary: RunSummary) -> list[Block | None]:
    if summary.cause is None or summary.state == "completed":
        return []
    overview = overview_of(summary, ())
    cause = cause_of(summary.cause)
    said = f" ({summary.message})" if summary.message else ""
    return [
        Paragraph(f"{cause.sentence}{said}", "problem" if summary.state == "failed" else "plain"),
        Paragraph(f"Machine at fault: {overview.node}") if overview.node else None,
        Lines(overview.evidence) if overview.evidence else None,
        Paragraph(f"Next: {overview.advice}") if overview.advice else None,
    ]


def _spec(summary: RunSummary, discretion: Redaction) -> list[Block | None]:
    rows = [(key, discretion.value(key, summary.spec[key])) for key in _KEY_FACTS if _is_said(summary.spec, key)]
    generations = summary.run.resolved_generations()
    specs = [readable(partial(fields_of, path))[0] or {} for path in generations]
    changed = differences(specs)
    head = (
        "Changed by a resume",
        *(path.stem.replace("resolved", "spec").replace("spec.", "spec ") for path in generations),
    )
    return [
        Facts(tuple(rows)) if rows else None,
        table(head, [(each.path, *(discretion.value(each.path, value) for value in each.values)) for each in changed]),
        Paragraph("The complete spec is resolved.json in the run directory.", "dim") if rows else None,
    ]


def _is_said(spec: Mapping[str, str], key: str) -> bool:
    return spec.get(key) not in (None, "", "null")


def _curves(summary: RunSummary, series: Series, place: int) -> list[Block | None]:
    events = readable(summary.run.events)[0] or EventLog()
    marks, _ = readable(lambda: marks_of(events))
    started = events.last(Started)
    charts = []
    for chart in charts_with(summary.values, started.device if started else None):
        references, _ = readable(partial(references_of, chart.name, summary.run))
        made = figure_of(chart, {summary.key: series}, marks=marks or (), references=references or ())
        if made["data"]:
            charts.append((f"run{place}-{chart.name}", made))
    return [Curves(tuple(charts)) if charts else Paragraph("Nothing was measured.", "dim")]


def _measured(series: Series) -> Block | None:
    rows = []
    for key in sorted(series.columns)[:_MOST_METRICS]:
        column = series.measured(key)
        if column is None:
            continue
        finite = [
            (value, step) for step, value in zip(column.iterations, column.values, strict=True) if math.isfinite(value)
        ]
        least, at_least = min(finite) if finite else (None, None)
        most, at_most = max(finite, key=lambda each: each[0]) if finite else (None, None)
        ends = (number(column.values[0], 5), number(column.values[-1], 5))
        rows.append((key, *ends, number(least, 5), exact(at_least), number(most, 5), exact(at_most)))
    return table(("Metric", "First", "Last", "Least", "at step", "Greatest", "at step"), rows, range(1, 7))


def _planned(summary: RunSummary, series: Series) -> list[Block | None]:
    planned = planned_of(summary.run)
    rows = [
        (
            row.name,
            _figure(row.planned, row.unit),
            _figure(row.measured, row.unit),
            f"{row.ratio:.2f}" if row.ratio else NOTHING,
        )
        for row in rows_of(planned, series, summary.run.events())
    ]
    device = f"Planned for {planned.forecast.device.name} ({planned.device_from})."
    assumed = " The GPU is not known: times and memory may be for another one." if planned.is_assumed else ""
    return [
        table(("", "Planned", "Measured", "Measured by planned"), rows, range(1, 4)),
        Paragraph(device + assumed, "dim"),
    ]


def _figure(value: float | None, unit: Unit) -> str:
    if value is None:
        return NOTHING
    return {"seconds": duration, "memory": size, "disk": disk, "share": percent, "count": count}[unit](value)


def _time(summary: RunSummary) -> Block | None:
    found = goodput_of(summary.run, time.time() if summary.is_active else None)
    rows = [(name, duration(seconds), percent(share)) for name, seconds, share in parts_of_time(found)]
    return table(("What for", "Time", "Share"), rows, (1, 2))


def _data(run: RunDir, place: int, curves: bool) -> list[Block | None]:
    use = blend_use(run)
    rows = [
        (
            source.name,
            number(source.weight),
            percent(source.share),
            exact(source.documents),
            exact(source.tokens_held),
            exact(source.tokens),
            percent(source.part),
            number(source.epochs, 3),
            number(source.epochs_at_end, 3),
        )
        for source in use.sources
    ]
    head = (
        "Source",
        "Weight",
        "Share",
        "Documents",
        "Tokens held",
        "Tokens read",
        "Of the run",
        "Epochs",
        "At the end",
    )
    figure = consumption_figure(run) if curves and len(use.sources) > 1 else {"data": []}
    return [
        Paragraph(f"{use.says} {exact(use.samples)} of {exact(use.samples_at_end)} samples are read."),
        table(head, rows, range(1, 9)),
        *(Paragraph(text, "warning") for text in use.warnings),
        *(Paragraph(text, "dim") for text in (*use.notes, *use.remarks)),
        Curves(((f"run{place}-sources", figure),)) if figure["data"] else None,
    ]


def _checkpoints(run: RunDir) -> Block | None:
    saved = run.events().saved
    kept = committed(run)
    rows = [
        (
            exact(commit.iteration),
            exact(commit.consumed_samples),
            disk(commit.bytes),
            _moment(saved[commit.iteration].time if commit.iteration in saved else None),
        )
        for commit in kept[-_MOST_CHECKPOINTS:]
    ]
    return table(("Iteration", "Samples", "Size", "Saved"), rows, range(3))


def _moment(value: Any) -> str:
    return clock(value) if isinstance(value, int | float) else NOTHING


def _evaluations(run: RunDir) -> Block | None:
    rows = []
    for result in results_of(run):
        for name, measure in result.metrics.items():
            error = f" ± {number(measure.stderr, 3)}" if measure.stderr is not None else ""
            rows.append(
                (result.name, exact(result.iteration), name, number(measure.value, 5) + error, clock(result.finished))
            )
    return table(("Task", "Iteration", "Metric", "Value", "Finished"), rows, (1, 3))


def _events(run: RunDir) -> list[Block | None]:
    events = thinned(run.events())
    shown = events[-_MOST_EVENTS:]
    return [
        table(("When", "What"), [(clock(each.time), each.text) for each in shown]),
        Paragraph("Earlier events are in events.jsonl.", "dim") if len(events) > len(shown) else None,
    ]
