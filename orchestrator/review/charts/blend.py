"""What a run has taken from each source of its data so far, and what it will have taken at its end.

Exact where the spec says it all: who gives which sample of a blend is arithmetic (data/samples/predicted_blend.py), as
long as one spec is followed. What is not exact is said in `remarks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from orchestrator.data.checks import path_names
from orchestrator.data.samples.predicted_blend import Draws
from orchestrator.errors import OrchestratorError
from orchestrator.planning.blend import blend_report
from orchestrator.planning.blend.report import BlendReport, Conversations, PartPlan, SourcePlan
from orchestrator.planning.training_schedule.batch import BatchSchedule, Progress
from orchestrator.planning.training_schedule.spec_history import Period, periods_of, starts_of
from orchestrator.review.charts.axes import plain
from orchestrator.review.charts.curves import Figure, mode_of
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.data import Blend, BlendEntry, DataSpec
from orchestrator.tracking.measurements.metrics import Metric, MetricTail

_TAIL_BYTES = 64 << 10
_POINTS = 40
_CHANGES = (
    "A resume changed what the run reads or how much: each start is counted by the spec that was newest at its time, "
    "according to the times of the files."
)
_SENTENCES = (
    "Its samples are sentences of documents: tokens are counted as if all samples were full, and epochs are not "
    "known beforehand."
)


@dataclass(frozen=True)
class SourceUse:
    """One source of the training blend. Counts are None where the data cannot be read from here.

    `weight` as written and `share` in effect, None for a source that a resume took out of the blend. `samples` and
    `tokens` so far; `epochs` so far.
    """

    name: str
    path: str
    samples: int
    tokens: int
    weight: float | None = None
    share: float | None = None
    documents: int | None = None
    tokens_held: int | None = None
    samples_held: int | None = None
    epochs: float | None = None
    samples_at_end: int | None = None
    tokens_at_end: int | None = None
    epochs_at_end: float | None = None
    again_from_step: int | None = None
    epochs_are_mixed: bool = False
    conversations: Conversations | None = None
    note: str | None = None

    @property
    def tokens_left(self) -> int | None:
        """Tokens that were not seen yet; 0 from the second epoch on. None where that is not known."""
        if self.epochs is None or self.tokens_held is None:
            return None
        return max(0, round(self.tokens_held * (1 - self.epochs)))

    @property
    def part(self) -> float | None:
        """How much of what the run will take from here it has taken, from 0 to 1."""
        return min(1.0, self.samples / self.samples_at_end) if self.samples_at_end else None


@dataclass(frozen=True)
class BlendUse:
    """What a run reads. `kind` and `says` tell what of the rest applies; samples and tokens are the training's."""

    kind: str
    says: str
    iteration: int
    samples: int
    samples_at_end: int
    tokens: int
    sources: tuple[SourceUse, ...] = ()
    validation: PartPlan | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """What each source is called by its path: as in the names of metrics."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def blend_use(run: RunDir) -> BlendUse:
    """What a run has read up to now. Raises UserError where its spec cannot be read."""
    events = run.events()
    periods = periods_of(run, events)
    job = periods[-1].job
    batch = BatchSchedule.of(job)
    iteration, samples = consumed(run, periods, events)
    kind, says = _kind(job)
    use = BlendUse(kind, says, iteration, samples, _samples_at_end(periods), periods[-1].tokens_at(samples))
    if kind != "blend":
        return use
    folder = Path(events.folder or "")
    report, trouble = _report(job, batch, folder)
    remarks = [
        *([_CHANGES] if len(periods) > 1 else []),
        *([_SENTENCES] if job.model.reads_sentences else []),
        *([trouble] if trouble else []),
    ]
    if report is None:
        return replace(use, sources=_sources(job, None, periods, samples), remarks=tuple(remarks))
    missing = [source.path for source in report.train.sources if source.tokens_held is None]
    if missing and not trouble:
        remarks.append("Some data cannot be read from here: for it, only the spec's values are shown.")
    return replace(
        use,
        sources=_sources(job, report, periods, samples),
        validation=report.validation if report.validation.samples else None,
        names=_names([source.path for source in report.validation.sources]),
        warnings=(*report.stops, *report.warnings),
        notes=report.notes,
        remarks=tuple(remarks),
    )


def consumed(run: RunDir, periods: Sequence[Period], events: EventLog) -> tuple[int, int]:
    """The step that a run has reached, as measured last or as its latest start began, and the samples consumed until
    then.
    """
    try:
        size = run.metrics_file.stat().st_size
    except OSError:
        size = 0
    last: Metric | None = None
    for metric in MetricTail(run.metrics_file, max(0, size - _TAIL_BYTES)).poll():
        last = metric
    starts = starts_of(events)
    if starts and (last is None or starts[-1].time > last.time):  # what was measured before may be undone
        iteration = starts[-1].iteration
        return iteration, periods[-1].progress_at(iteration).samples
    return (last.iteration, last.samples) if last is not None else (0, 0)


class SourceCounts(NamedTuple):
    """What a source gave: samples, and their tokens."""

    samples: int = 0
    tokens: int = 0


def given(periods: Sequence[Period], samples: int) -> dict[str, SourceCounts]:
    """What each source gave of the first `samples` samples of a run, by path; that of a path that a blend has twice is
    together.
    """
    found: dict[str, SourceCounts] = {}
    for number, period in enumerate(periods):
        blend = period.job.data.blend or []
        end = min(samples, periods[number + 1].samples) if number + 1 < len(periods) else samples
        counts = _between(blend, period.samples - period.blend_since, end - period.blend_since)
        for entry, count in zip(blend, counts, strict=True):
            before = found.get(entry.path, SourceCounts())
            tokens = count * period.job.model.seq_length
            found[entry.path] = SourceCounts(before.samples + count, before.tokens + tokens)
    return found


def consumption_figure(run: RunDir) -> Figure:
    """Tokens from each source over the steps of the run so far, one above the other. Raises UserError."""
    events = run.events()
    periods = periods_of(run, events)
    iteration, samples = consumed(run, periods, events)
    shown: dict[str, list[float]] = {path: [] for path in given(periods, 0)}
    steps = sorted({round(iteration * number / _POINTS) for number in range(_POINTS + 1)}) if iteration else []
    for step in steps:
        at = next((period for period in reversed(periods) if period.iteration <= step), periods[0])
        so_far = given(periods, samples if step == iteration else min(samples, at.progress_at(step).samples))
        for path, values in shown.items():
            values.append(so_far[path].tokens)
    names = path_names(list(shown)) if shown else []
    data = [
        {
            "type": "scatter",
            "mode": mode_of(values),
            "name": plain(name),
            "stackgroup": "sources",
            "x": steps,
            "y": values,
        }
        for name, values in zip(names, shown.values(), strict=True)
    ]
    layout = {
        "title": {"text": "Tokens from each source"},
        "showlegend": True,
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "tokens"}, "rangemode": "tozero"},
    }
    return {"data": data if steps else [], "layout": layout}


def _between(blend: Sequence[BlendEntry], start: int, end: int) -> list[int]:
    """Samples that each source gives of those from `start` to `end`."""
    if not blend:
        return []
    draws = Draws([entry.weight for entry in blend])
    start = max(0, start)
    before = draws.counts(start) if start else [0] * len(blend)
    return [max(0, count - earlier) for count, earlier in zip(draws.counts(max(start, end)), before, strict=True)]


def _kind(job: JobSpec) -> tuple[str, str]:
    data = job.data
    if data.random_tokens:
        return "random", "It reads random token ids (data.random_tokens): there are no sources."
    if job.has_task:
        files = len(job.labelled_task.train)
        return (
            "task",
            f"It learns the task {job.labelled_task.name} from {files} file{'s' * (files != 1)}, epoch by epoch.",
        )
    if not data.blend:
        return "none", "Its spec names no data (data.blend)."
    if data.has_conversations:
        return "blend", "Its sources are conversations: a sample is a sequence with one or several of them."
    return "blend", "A blend draws each sample from the source that is furthest behind its weight."


def _report(job: JobSpec, batch: BatchSchedule, folder: Path) -> tuple[BlendReport | None, str | None]:
    """The plan's report on the data as they lie now, relative paths from where the run was created."""
    try:
        return blend_report(job.model_copy(update={"data": _placed(job.data, folder)}), batch), None
    except (OrchestratorError, OSError, ValueError, ArithmeticError, LookupError) as error:
        return None, f"The data cannot be read from here: {error}"


def _placed(data: DataSpec, folder: Path) -> DataSpec:
    tokenizer = data.tokenizer
    if tokenizer.path is not None:
        tokenizer = tokenizer.model_copy(update={"path": str(folder / tokenizer.path)})
    parts = {"blend": data.blend, "validation": data.validation, "test": data.test}
    placed = {name: _blend_in(folder, blend) for name, blend in parts.items()}
    return data.model_copy(update={**placed, "tokenizer": tokenizer})


def _blend_in(folder: Path, blend: Blend | None) -> Blend | None:
    return blend and [entry.model_copy(update={"path": str(folder / entry.path)}) for entry in blend]


def _sources(
    job: JobSpec, report: BlendReport | None, periods: Sequence[Period], samples: int
) -> tuple[SourceUse, ...]:
    blend = job.data.blend or []
    counts = given(periods, samples)
    at_end = given(periods, _samples_at_end(periods))
    planned = report.train.sources if report is not None else (None,) * len(blend)
    shares = Draws([entry.weight for entry in blend]).shares
    names = _names(list(counts))
    uses: dict[str, SourceUse] = {}
    for entry, share, plan in zip(blend, shares, planned, strict=True):
        earlier = uses.get(entry.path)
        if earlier is not None:  # twice in the blend: what it gives is counted together
            weight, held = (earlier.weight or 0.0) + entry.weight, (earlier.share or 0.0) + share
            uses[entry.path] = replace(earlier, weight=weight, share=held)
            continue
        uses[entry.path] = _use(job, names[entry.path], entry, share, plan, counts[entry.path], at_end[entry.path])
    gone = [path for path in counts if path not in uses]
    return (*uses.values(), *(_gone(names[path], path, counts[path]) for path in gone))


def _names(paths: Sequence[str]) -> dict[str, str]:
    return dict(zip(paths, path_names(list(paths)), strict=True)) if paths else {}


def _samples_at_end(periods: Sequence[Period]) -> int:
    latest = periods[-1]
    return BatchSchedule.of(latest.job, Progress(latest.iteration, latest.samples, latest.tokens)).train_samples


def _use(
    job: JobSpec,
    name: str,
    entry: BlendEntry,
    share: float,
    plan: SourcePlan | None,
    so_far: SourceCounts,
    at_end: SourceCounts,
) -> SourceUse:
    use = SourceUse(
        name=name,
        path=entry.path,
        samples=so_far.samples,
        tokens=so_far.tokens,
        weight=entry.weight,
        share=share,
        samples_at_end=at_end.samples,
        tokens_at_end=at_end.tokens,
    )
    if plan is None:
        return use
    return replace(
        use,
        documents=plan.documents,
        tokens_held=plan.tokens_held,
        samples_held=plan.samples_held,
        epochs=_epochs(job, plan, so_far),
        epochs_at_end=_epochs(job, plan, at_end),
        again_from_step=plan.second_epoch_step,
        epochs_are_mixed=plan.epochs_are_mixed,
        conversations=plan.conversations,
        note=plan.note,
    )


def _epochs(job: JobSpec, plan: SourcePlan, read: SourceCounts) -> float | None:
    """How many epochs of a source the samples read make up."""
    if job.model.reads_sentences:
        return None
    if job.data.has_conversations:
        return read.samples / plan.samples_held if plan.samples_held else None
    return read.tokens / plan.tokens_held if plan.tokens_held else None


def _gone(name: str, path: str, read: SourceCounts) -> SourceUse:
    """A source that only an earlier spec of the run had."""
    return SourceUse(name, path, read.samples, read.tokens, note="a resume took it out of the blend")
