"""Reading the event log of a run, and what follows from its events: each derivation once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from orchestrator.files.stored_files import MOST_BYTES, lines_from, open_stored, parse_line, read_json_lines, size_of
from orchestrator.run_directory.events.types import (
    BY_LAUNCHER,
    CheckpointSaved,
    Created,
    Event,
    Exited,
    GaveUp,
    Imported,
    Launched,
    Requeued,
    Started,
    Submitted,
    Withdrawn,
    event_of,
)

_Kind = TypeVar("_Kind", bound=Event)

_KEPT = 8
"""Logs: a page, or a command, asks for the events of a run several times."""
_MOST_KEPT_BYTES = 1 << 20
"""Of each of these: some 5,000 events, which take ten times as much in memory."""


class Launch(NamedTuple):
    """A start of a run, with its end where it was written. `restarts`: its launcher starts the run again after that;
    `withdrawn`: a person kept the run from that.
    """

    launched: Launched
    launch_id: str
    exited: Exited | None = None
    restarts: bool = False
    withdrawn: bool = False


class EventLog(tuple[Event, ...]):
    """The events of a run, in the order of its log."""

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> EventLog:
        """The events among stored objects."""
        return cls(event for record in records if (event := event_of(record)) is not None)

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        """Those of a kind."""
        return [event for event in self if isinstance(event, kind)]

    def first(self, kind: type[_Kind]) -> _Kind | None:
        """The earliest of a kind."""
        return next((event for event in self if isinstance(event, kind)), None)

    def last(self, kind: type[_Kind]) -> _Kind | None:
        """The latest of a kind."""
        return next((event for event in reversed(self) if isinstance(event, kind)), None)

    def since(self, number: int) -> EventLog:
        """Those after so many."""
        return EventLog(self[number:])

    def of_launch(self, launch_id: str | None) -> EventLog:
        """Those that name a launch."""
        return EventLog(event for event in self if event.of_launch == launch_id)

    def since_submission(self) -> EventLog:
        """Those from the last time on that it was submitted: what was before is no business of this job."""
        places = [number for number, event in enumerate(self) if isinstance(event, Submitted)]
        return self.since(places[-1] if places else 0)

    @property
    def was_started(self) -> bool:
        """Whether its ranks have ever begun to train."""
        return self.first(Started) is not None

    @property
    def created(self) -> float | None:
        """When it was created."""
        made = self.first(Created)
        return None if made is None else made.time

    @property
    def folder(self) -> str | None:
        """The folder that it was created in."""
        return next((made.folder for made in self.all(Created) if made.folder), None)

    @property
    def imported_from(self) -> str | None:
        """Where the weights of a run came from that holds nothing else; None for one that trains, as one does whose
        optimizer was imported with them.
        """
        return next((str(each.source) for each in self.all(Imported) if not each.optimizer), None)

    @property
    def choices(self) -> dict[str, Any] | None:
        """What the ranks of the last start chose; None before the first, and for a version that did not say."""
        started = self.last(Started)
        return None if started is None or started.device is None else started.choices

    @property
    def saved(self) -> dict[int, CheckpointSaved]:
        """The last save of each iteration."""
        return {each.iteration: each for each in self.all(CheckpointSaved) if each.iteration is not None}

    def has_ended(self, launch_id: str | None) -> bool:
        """Whether the end of a launch was written."""
        return any(exited.launch_id == launch_id for exited in self.all(Exited))

    @cached_property
    def last_launch(self) -> Launch | None:
        """The newest launch. Those that were refused because the run was held are passed over: they changed nothing."""
        launches: dict[str, Launch] = {}
        for event in self:
            launch_id = str(event.of_launch)
            known = launches.get(launch_id)
            match event:
                case Launched():
                    launches[launch_id] = Launch(event, launch_id)
                case Exited(cause="held") if known:
                    del launches[launch_id]
                case Exited() if known:
                    launches[launch_id] = known._replace(exited=event)
                case Requeued(by=by) if known:
                    launches[launch_id] = known._replace(restarts=by == BY_LAUNCHER)
                case GaveUp() if known:
                    launches[launch_id] = known._replace(restarts=False)
                case Withdrawn() if known:
                    launches[launch_id] = known._replace(restarts=False, withdrawn=True)
        return list(launches.values())[-1] if launches else None

    @property
    def last_end(self) -> Exited | None:
        """The end of the latest launch; None where it has not ended."""
        end: Exited | None = None
        for event in self:
            if isinstance(event, Launched | Exited):
                end = event if isinstance(event, Exited) else None
        return end

    @property
    def withdrawal(self) -> Withdrawn | None:
        """The event by which a person took the run out of a queue, if that is where it stands."""
        on_the_way = (event for event in reversed(self) if isinstance(event, Submitted | Launched | Withdrawn))
        newest = next(on_the_way, None)
        return newest if isinstance(newest, Withdrawn) else None

    def without_refused(self) -> EventLog:
        """Without the starts that found the run held by another, which they left at work."""
        refused = {each.launch_id for each in self.all(Exited) if each.cause == "held"} - {None}
        return EventLog(
            event for event in self if not (isinstance(event, Launched | Exited) and event.launch_id in refused)
        )


def read_events(log: Path) -> EventLog:
    """The events of a run's log so far; a torn last line is left out, and of a log of more than 16 MiB, which no
    training writes, the middle. Raises OSError for what is no file of its folder.
    """
    try:
        with open_stored(log, log.parent) as file:
            found = os.fstat(file.fileno())
    except FileNotFoundError:
        return EventLog()
    if found.st_size > _MOST_KEPT_BYTES:
        return _parsed(log)
    return _kept(log, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def _parsed(log: Path) -> EventLog:
    return EventLog.of(read_json_lines(log, log.parent))


@lru_cache(maxsize=_KEPT)
def _kept(log: Path, version: tuple[int, ...]) -> EventLog:
    """The events of a log; `version` changes whenever it is written to."""
    return _parsed(log)


class EventTail:
    """Reads an event log as it grows; lines that are not whole records are passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = size_of(path)

    def poll(self) -> EventLog:
        """The whole records since the last call."""
        lines = []
        try:
            with open_stored(self.path, self.path.parent) as file:
                for line, end in lines_from(file, self.offset, MOST_BYTES):
                    self.offset = end
                    lines.append(line)
        except FileNotFoundError:
            return EventLog()
        return EventLog.of(record for line in lines if (record := parse_line(line)) is not None)
