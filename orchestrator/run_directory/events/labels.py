"""What people say of a run or a sweep: its labels. Typed events, and the one reducer that gives `Labels`.

They are no events of the training, and their order to those does not matter: they have files of their own
(`run_directory/labels.py` reads and writes them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from orchestrator.run_directory.events.types import Event, Text, Texts


class LabelEvent(Event):
    """A label of a run or of a sweep was changed."""

    kinds: ClassVar[dict[str, type[Event]]] = {}


class Tagged(LabelEvent, name="tagged"):
    """It has these tags, too."""

    tags: Texts


class Untagged(LabelEvent, name="untagged"):
    """It has these tags no more."""

    tags: Texts


class Noted(LabelEvent, name="noted"):
    """Its note, in place of an earlier one; empty for none."""

    note: Text


class Renamed(LabelEvent, name="renamed"):
    """The name that is shown; `former`: the one before."""

    to: Text
    former: Text


class Archived(LabelEvent, name="archived"):
    """It is hidden from lists until somebody asks for it."""


class Unarchived(LabelEvent, name="unarchived"):
    """It is shown in lists again."""


class Deleted(LabelEvent, name="deleted"):
    """It was moved to the trash."""


class Restored(LabelEvent, name="restored"):
    """It was put back from the trash."""


@dataclass(frozen=True)
class Labels:
    """What people say of a run or a sweep."""

    name: str | None = None
    """What it is shown as; None where that is the name of its folder."""
    former_names: tuple[str, ...] = ()
    """What it was called before, the oldest first; also its folder's name once it was renamed."""
    tags: tuple[str, ...] = ()
    """In the order of the alphabet."""
    note: str = ""
    archived: bool = False

    @classmethod
    def of(cls, events: Iterable[Event]) -> Labels:
        """What the events come to; those that say nothing that can be read change nothing."""
        name: str | None = None
        former: dict[str, None] = {}
        tags: set[str] = set()
        note, archived = "", False
        for event in events:
            match event:
                case Tagged():
                    tags.update(event.tags or ())
                case Untagged():
                    tags.difference_update(event.tags or ())
                case Noted():
                    note = event.note or ""
                case Renamed(to=str(to)):
                    if event.former:
                        former[event.former] = None
                    name = to
                case Archived() | Unarchived():
                    archived = isinstance(event, Archived)
        others = tuple(each for each in former if each != name)
        return cls(name=name, former_names=others, tags=tuple(sorted(tags)), note=note, archived=archived)
