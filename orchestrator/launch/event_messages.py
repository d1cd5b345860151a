"""What happened to a run, as sentences: its event log for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from orchestrator.fields.nodelist import compact_nodelist
from orchestrator.files.stored_files import DAMAGE
from orchestrator.launch.kernel_choices import choices_line
from orchestrator.quantities import disk_size, time_span
from orchestrator.run_directory.events.labels import (
    Archived,
    Deleted,
    Noted,
    Renamed,
    Restored,
    Tagged,
    Unarchived,
    Untagged,
)
from orchestrator.run_directory.events.types import (
    BY_LAUNCHER,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    Created,
    DataFailed,
    DataPrepared,
    DataSubmitted,
    EvaluationSkipped,
    Event,
    Exited,
    Exported,
    ExportFailed,
    ExportStopped,
    Finished,
    FirstStep,
    GaveUp,
    Hang,
    Imported,
    Launched,
    Notified,
    Pretrained,
    Requeued,
    RequeueFailed,
    Reshaped,
    Resumed,
    Started,
    StepSkipped,
    StopRequested,
    Submitted,
    Withdrawn,
)
from orchestrator.run_directory.exits.causes import NO_FAILURES, cause_of
from orchestrator.run_directory.labels import label_events
from orchestrator.run_directory.rundir import RunDir

Group = Literal["start", "end", "checkpoint", "queue", "data", "trouble", "other"]
_Value = TypeVar("_Value")

_MOST_EVIDENCE = 12
_NEWS = {
    "started": "that it had started",
    "requeued": "that it went back into the queue",
    "completed": "that it had completed",
    "failed": "that it had failed",
    "stopped": "that it had stopped",
}
_IN_NUMBERS: dict[str, str] = {CheckpointSaved.name: "checkpoints saved", Exported.name: "checkpoints exported"}


@dataclass(frozen=True)
class Told:
    """An event. `time` in seconds since the epoch, None where it has none that makes sense; `number`: its place in the
    log, from 1.
    """

    number: int
    time: float | None
    kind: str
    group: Group
    text: str
    details: tuple[str, ...] = ()


def history_of(run: RunDir) -> list[Event]:
    """The events of a run and the changes of its labels, in the order of time. Raises OSError for a log that cannot be
    read.
    """
    labels = label_events(run.path)
    return sorted([*run.events(), *labels], key=lambda event: event.time or 0.0) if labels else list(run.events())


def told(events: Iterable[Event]) -> list[Told]:
    """Every event as a sentence, in the order of the log; whatever is in it."""
    return [_told(number, event) for number, event in enumerate(events, 1)]


def thinned(events: Iterable[Event]) -> list[Told]:
    """The same in fewer lines: of several checkpoints, or exports, with nothing else between them the last is told."""
    found: list[Told] = []
    stretch: dict[str, list[tuple[Event, Told]]] = {}
    for number, event in enumerate(events, 1):
        each = _told(number, event)
        if each.kind in _IN_NUMBERS:
            stretch.setdefault(each.kind, []).append((event, each))
        else:
            found += [*_counted(stretch), each]
            stretch = {}
    return [*found, *_counted(stretch)]


def _counted(stretch: Mapping[str, Sequence[tuple[Event, Told]]]) -> list[Told]:
    """One for all of a kind, in the order of the log."""
    lines = []
    for kind, known in stretch.items():
        event, line = known[-1]
        many = f"{len(known)} {_IN_NUMBERS[kind]}, the last at iteration {event.at}"
        lines.append(replace(line, text=many) if len(known) > 1 else line)
    return sorted(lines, key=lambda line: line.number)


def evidence_of(exited: Exited) -> tuple[str, ...]:
    """The log lines that show why a launch ended."""
    return (exited.evidence or ())[:_MOST_EVIDENCE]


def sentence_of(event: Event) -> str:
    """What an event says; of one that is not known, or not as it should be, its fields."""
    try:
        return SENTENCES[type(event)][1](event)
    except DAMAGE:
        rest = ", ".join(f"{key} {value}" for key, value in event.said().items() if key not in ("time", "event"))
        return f"{event.kind}: {rest}" if rest else event.kind


def _told(number: int, event: Event) -> Told:
    group = SENTENCES[type(event)][0] if type(event) in SENTENCES else "other"
    if not isinstance(event, Exited):
        return Told(number, event.time, event.kind, group, sentence_of(event))
    group = group if event.cause in NO_FAILURES else "trouble"
    return Told(number, event.time, event.kind, group, sentence_of(event), evidence_of(event))


def _known(value: _Value | None) -> _Value:
    """What no sentence can do without; raises LookupError where it was not said."""
    if value is None:
        raise LookupError
    return value


def _created(event: Created) -> str:
    return f"created in {event.folder}" if event.folder else "created"


def _launched(event: Launched) -> str:
    where = f"on {compact_nodelist(event.nodes)}" if event.nodes else f"on {event.host}" if event.host else ""
    job = f" as job {event.job_id}" if event.job_id else ""
    again = f", restart {event.restart}" if event.restart else ""
    return f"started {where}{job}{again}".replace("  ", " ").rstrip()


def _started(event: Started) -> str:
    degrees = " x ".join(f"{name.upper()} {size}" for name, size in (event.topology or {}).items() if size != 1)
    size = _known(event.world_size)
    processes = f"{size} process{'' if size == 1 else 'es'}" + (f" ({degrees})" if degrees else "")
    nodes = f" on {event.nodes} node{'' if event.nodes == 1 else 's'}" if event.nodes is not None else ""
    computing = f", on {choices_line(event.choices)}" if event.device is not None else ""
    versions = f" (torch {event.torch}, megatron-core {event.megatron_core})" if event.torch is not None else ""
    return f"started {processes}{nodes} at iteration {_known(event.iteration)}{computing}{versions}"


def _exited(event: Exited) -> str:
    text = cause_of(str(event.cause)).sentence
    text += f" at iteration {event.iteration}" if event.iteration is not None else ""
    text += f" ({event.message})" if event.message else ""
    return text + (f"; machine at fault: {event.node}" if event.node else "")


def _requeued(event: Requeued) -> str:
    without = f", without {compact_nodelist(event.exclude)}" if event.exclude else ""
    later = f", in {time_span(event.delay)}" if event.delay else ""
    how = "started again by its launcher" if event.by == BY_LAUNCHER else f"requeued by {event.by}"
    return f"{how}: {cause_of(str(event.cause)).sentence}{later}{without}"


def _pretrained(event: Pretrained) -> str:
    source = event.from_run or _known(event.checkpoint)
    at_random = f"; at random: {', '.join(event.fresh)}" if event.fresh else ""
    return f"weights of iteration {_known(event.from_iteration)} of {source}{at_random}"


def _imported(event: Imported) -> str:
    return f"weights{' and optimizer' if event.optimizer else ''} imported from {_known(event.source)}"


def _first_step(event: FirstStep) -> str:
    parts = _known(event.seconds)
    slowest = sorted(parts, key=lambda name: -parts[name])[:3]
    of_which = ", ".join(f"{name.replace('_', ' ')} {time_span(parts[name])}" for name in slowest)
    after = time_span(sum(parts.values()))
    return (
        f"the first step of this start, iteration {_known(event.iteration)}, was done {after} after the launch "
        f"({of_which})"
    )


def _notified(event: Notified) -> str:
    what = _NEWS.get(str(event.occasion), f"of {event.occasion}")
    ways = " and ".join(event.told or ())
    sent = f"notified {what}, by {ways}" if ways else f"nobody was notified {what}"
    return "; ".join([sent, *(f"not by {way}: {why}" for way, why in (event.failed or {}).items())])


def _saved(event: CheckpointSaved) -> str:
    return f"saved a checkpoint at iteration {_known(event.iteration)} ({_written(event)})"


def _exported(event: Exported) -> str:
    return f"exported iteration {_known(event.iteration)} to {_known(event.path)} ({_written(event)})"


def _written(event: CheckpointSaved | Exported) -> str:
    took = f" in {time_span(event.seconds)}" if event.seconds is not None else ""
    return f"{disk_size(_known(event.bytes))}{took}"


def _withdrawn(event: Withdrawn) -> str:
    if event.launch_id is not None:
        return f"kept from its next start by {_known(event.by)}"
    return f"job {_known(event.job_id)} was taken out of the queue by {_known(event.by)}"


def _renamed(event: Renamed) -> str:
    return f"renamed to {_known(event.to)}" + (f", from {event.former}" if event.former else "")


def _of(template: str) -> Callable[[Event], str]:
    """A sentence with the event's fields."""
    return lambda event: template.format(**event.said())


SENTENCES: dict[type[Event], tuple[Group, Callable[[Any], str]]] = {
    Created: ("start", _created),
    Imported: ("start", _imported),
    Reshaped: ("start", _of("checkpoint {iteration} written anew for this layout, from {source}")),
    Launched: ("start", _launched),
    Started: ("start", _started),
    Pretrained: ("start", _pretrained),
    FirstStep: ("start", _first_step),
    Notified: ("other", _notified),
    Resumed: ("start", _of("resumed from the checkpoint of iteration {iteration}")),
    Exited: ("end", _exited),
    Finished: ("end", _of("all steps are done: iteration {iteration}")),
    StopRequested: ("end", _of("stopping at iteration {iteration} ({by})")),
    Submitted: ("queue", _of("submitted to {cluster} as job {job_id}")),
    DataSubmitted: ("queue", _of("the job that makes its data was submitted to {cluster} as job {job_id}")),
    Withdrawn: ("queue", _withdrawn),
    Requeued: ("queue", _requeued),
    RequeueFailed: ("trouble", _of("could not be put back into the queue: {message}")),
    GaveUp: ("trouble", _of("given up: {reason}")),
    DataPrepared: ("data", lambda event: f"data made: {len(event.made)} data sets"),
    DataFailed: ("trouble", _of("its data could not be made: {message}")),
    CheckpointSaved: ("checkpoint", _saved),
    CheckpointFailed: ("trouble", _of("the checkpoint of iteration {iteration} could not be saved: {message}")),
    CheckpointSkipped: ("trouble", _of("skipped a checkpoint: {message}")),
    Exported: ("checkpoint", _exported),
    ExportFailed: ("trouble", _of("iteration {iteration} was not exported: {message}")),
    ExportStopped: ("checkpoint", _of("the export of checkpoint {iteration} was interrupted")),
    EvaluationSkipped: (
        "other",
        _of("the evaluation at iteration {iteration} was left to the next start: a stop came"),
    ),
    StepSkipped: ("trouble", _of("skipped step {iteration}: {reason}")),
    Tagged: ("other", lambda event: f"tagged {', '.join(event.tags)}"),
    Untagged: ("other", lambda event: f"no longer tagged {', '.join(event.tags)}"),
    Noted: ("other", lambda event: f"noted: {event.note}" if event.note else "its note was removed"),
    Renamed: ("other", _renamed),
    Archived: ("other", _of("archived")),
    Unarchived: ("other", _of("no longer archived")),
    Deleted: ("other", _of("moved to the trash")),
    Restored: ("other", _of("put back from the trash")),
    Hang: ("trouble", _of("no progress for {seconds:.0f} s at iteration {iteration}")),
}
