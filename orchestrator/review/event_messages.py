"""What happened to a run, as sentences: its event log for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.causes import NO_FAILURES, cause_of
from orchestrator.cluster.nodelist import compact_nodelist
from orchestrator.launch.policy import BY_LAUNCHER
from orchestrator.planning.figures import disk_size, time_span
from orchestrator.review.damage import DAMAGE

Group = Literal["start", "end", "checkpoint", "queue", "data", "trouble", "other"]
Event = Mapping[str, Any]

_MOST_EVIDENCE = 12
_NEWS = {
    "started": "that it had started",
    "requeued": "that it went back into the queue",
    "completed": "that it had completed",
    "failed": "that it had failed",
    "stopped": "that it had stopped",
}
_IN_NUMBERS = {"checkpoint_saved": "checkpoints saved", "exported": "checkpoints exported"}


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
        many = f"{len(known)} {_IN_NUMBERS[kind]}, the last at iteration {event.get('iteration')}"
        lines.append(replace(line, text=many) if len(known) > 1 else line)
    return sorted(lines, key=lambda line: line.number)


def last(events: Sequence[Event], kind: str) -> Event:
    """The latest event of a kind; one without anything where there is none."""
    return next((event for event in reversed(events) if event.get("event") == kind), {})


def last_end(events: Iterable[Event]) -> Event | None:
    """The end of the latest launch, None where it has not ended."""
    end: Event | None = None
    for event in events:
        if event.get("event") == "launched":
            end = None
        elif event.get("event") == "exited":
            end = event
    return end


def evidence_of(event: Event) -> tuple[str, ...]:
    """The log lines that show why a launch ended."""
    lines = event.get("evidence")
    return tuple(str(line) for line in lines[:_MOST_EVIDENCE]) if isinstance(lines, list) else ()


def _told(number: int, event: Event) -> Told:
    kind = str(event.get("event"))
    moment = event.get("time")
    time = float(moment) if isinstance(moment, int | float) and abs(moment) < 1e11 else None
    group, sentence = _SENTENCES.get(kind, ("other", _plain))
    try:
        text = sentence(event)
    except DAMAGE:
        text = _plain(event)
    is_failure = kind == "exited" and event.get("cause") not in NO_FAILURES
    return Told(number, time, kind, "trouble" if is_failure else group, text, evidence_of(event))


def _plain(event: Event) -> str:
    """An event that is not known, or not as it should be."""
    rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "event"))
    return f"{event.get('event')}: {rest}" if rest else str(event.get("event"))


def _launched(event: Event) -> str:
    nodes = event.get("nodes")
    where = f"on {compact_nodelist(map(str, nodes))}" if isinstance(nodes, list) and nodes else ""
    where = where or (f"on {event['host']}" if event.get("host") else "")
    job = f" as job {event['job_id']}" if event.get("job_id") else ""
    again = f", restart {event['restart']}" if event.get("restart") else ""
    return f"started {where}{job}{again}".replace("  ", " ").rstrip()


def _started(event: Event) -> str:
    layout = event.get("topology")
    degrees = (
        " x ".join(f"{name.upper()} {size}" for name, size in layout.items() if size != 1)
        if isinstance(layout, dict)
        else ""
    )
    shape = f" = {degrees}" if degrees else ""
    size = event["world_size"]
    ranks = "1 rank trains" if size == 1 else f"{size} ranks{shape} train"
    return (
        f"{ranks} from iteration {event['iteration']} on {event['device']} "
        f"(torch {event.get('torch')}, megatron-core {event.get('megatron_core')})"
    )


def _exited(event: Event) -> str:
    cause, message, at = str(event.get("cause")), event.get("message"), event.get("iteration")
    text = cause_of(cause).sentence
    text += f" at iteration {at}" if at is not None else ""
    text += f" ({message})" if message else ""
    return text + (f"; machine at fault: {event['node']}" if event.get("node") else "")


def _requeued(event: Event) -> str:
    left_out = event.get("exclude") or []
    without = f", without {compact_nodelist(map(str, left_out))}" if left_out else ""
    later = f", in {time_span(float(event['delay']))}" if event.get("delay") else ""
    by = event.get("by")
    how = "started again by its launcher" if by == BY_LAUNCHER else f"back in the queue by {by}"
    return f"{how}: {cause_of(str(event.get('cause'))).sentence}{later}{without}"


def _pretrained(event: Event) -> str:
    source = event.get("from_run") or event["checkpoint"]
    fresh = event.get("fresh") or []
    at_random = f"; at random: {', '.join(map(str, fresh))}" if fresh else ""
    return f"weights of iteration {event['from_iteration']} of {source}{at_random}"


def _imported(event: Event) -> str:
    return f"weights{' and optimizer' if event.get('optimizer') else ''} imported from {event['source']}"


def _first_step(event: Event) -> str:
    parts = {str(name): float(seconds) for name, seconds in event["seconds"].items()}
    slowest = sorted(parts, key=lambda name: -parts[name])[:3]
    of_which = ", ".join(f"{name.replace('_', ' ')} {time_span(parts[name])}" for name in slowest)
    after = time_span(sum(parts.values()))
    return (
        f"the first step of this start, iteration {event['iteration']}, was done {after} after the launch ({of_which})"
    )


def _notified(event: Event) -> str:
    occasion = str(event.get("occasion"))
    what = _NEWS.get(occasion, f"of {occasion}")
    ways = " and ".join(map(str, event.get("told") or []))
    sent = f"notified {what}, by {ways}" if ways else f"nobody was notified {what}"
    return "; ".join([sent, *(f"not by {way}: {why}" for way, why in (event.get("failed") or {}).items())])


def _saved(event: Event) -> str:
    took = f", {time_span(float(event['seconds']))}" if "seconds" in event else ""
    return f"checkpoint {event['iteration']} saved: {disk_size(float(event['bytes']))}{took}"


def _exported(event: Event) -> str:
    return (
        f"checkpoint {event['iteration']} exported as {event['format']}: {disk_size(float(event['bytes']))}, "
        f"{time_span(float(event['seconds']))}"
    )


def _withdrawn(event: Event) -> str:
    if "launch_id" in event:
        return f"kept from its next start by {event['by']}"
    return f"job {event['job_id']} was taken out of the queue by {event['by']}"


def _of(template: str) -> Callable[[Event], str]:
    """A sentence with the event's fields."""
    return lambda event: template.format(**event)


_SENTENCES: dict[str, tuple[Group, Callable[[Event], str]]] = {
    "created": ("start", lambda event: "created" + (f" in {event['folder']}" if event.get("folder") else "")),
    "imported": ("start", _imported),
    "reshaped": ("start", _of("checkpoint {iteration} written anew for this layout, from {source}")),
    "launched": ("start", _launched),
    "started": ("start", _started),
    "pretrained": ("start", _pretrained),
    "first_step": ("start", _first_step),
    "notified": ("other", _notified),
    "resumed": ("start", _of("goes on from checkpoint {iteration}")),
    "exited": ("end", _exited),
    "finished": ("end", _of("all steps are done: iteration {iteration}")),
    "stop_requested": ("end", _of("a stop was asked for by {by}, at iteration {iteration}")),
    "submitted": ("queue", _of("submitted to {cluster} as job {job_id}")),
    "data_submitted": ("queue", _of("the job that makes its data was submitted to {cluster} as job {job_id}")),
    "withdrawn": ("queue", _withdrawn),
    "requeued": ("queue", _requeued),
    "requeue_failed": ("trouble", _of("could not be put back into the queue: {message}")),
    "gave_up": ("trouble", _of("given up: {reason}")),
    "data_prepared": ("data", lambda event: f"data made: {len(event['made'])} data sets"),
    "data_failed": ("trouble", _of("its data could not be made: {message}")),
    "checkpoint_saved": ("checkpoint", _saved),
    "checkpoint_failed": ("trouble", _of("checkpoint {iteration} failed: {message}")),
    "checkpoint_skipped": ("trouble", _of("a checkpoint was passed over: {path}: {message}")),
    "exported": ("checkpoint", _exported),
    "export_failed": ("trouble", _of("the export of checkpoint {iteration} failed: {message}")),
    "export_stopped": ("checkpoint", _of("the export of checkpoint {iteration} was interrupted")),
    "evaluation_skipped": (
        "other",
        _of("the evaluation at iteration {iteration} was left to the next start: a stop came"),
    ),
    "step_skipped": ("trouble", _of("step {iteration} was skipped: {reason}")),
    "hang": ("trouble", _of("no progress at iteration {iteration} for {seconds} s")),
}
