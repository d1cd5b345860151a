"""Every event of a sweep's ledger, and how it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeVar

from orchestrator.files.stored_files import read_json_lines
from orchestrator.run_directory.events.types import Count, Event, Items, Object, Text, Texts, event_of

_Kind = TypeVar("_Kind", bound="LedgerEvent")

_LEDGER_BYTES = 64 << 20
"""A plan of thousands of cells is one line, and each change of the sweep writes another."""


class LedgerEvent(Event):
    """An event of a sweep."""

    kinds: ClassVar[dict[str, type[Event]]] = {}


class CellsPlanned(LedgerEvent, name="planned"):
    """What the sweep is from now on: its cells ({id, name, values, run}), and those that no run can be made of
    ({name, values, reason}).
    """

    generation: Count
    metric: Text
    goal: Text
    cells: Items
    pruned: Items
    filtered: Count
    repeated: Count

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The cells, as far as they can be read."""
        return [cell for cell in self.cells or () if isinstance(cell, dict)]


class PlanWithdrawn(LedgerEvent, name="withdrawn"):
    """Nothing of that plan was started, and it does not count."""

    generation: Count


class CellsSubmitted(LedgerEvent, name="submitted"):
    """Cells were handed to a scheduler, or to a driver on this machine: {cell id: job id}."""

    how: Text
    cluster: Text
    max_parallel: Count
    jobs: Object
    driver: Object = None


class CellsCancelled(LedgerEvent, name="cancelled"):
    """A person keeps cells from starting: their ids."""

    cells: Texts


class CellsDeleted(LedgerEvent, name="deleted"):
    """A person deleted the runs of cells: their ids. They are not trained again unless somebody says so."""

    cells: Texts


class CellsRestored(LedgerEvent, name="restored"):
    """Deleted cells count again: their runs are put back, or a person has them begin anew."""

    cells: Texts


class SweepNotified(LedgerEvent, name="notified"):
    """People were told of its end."""

    occasion: Text
    told: Texts
    failed: Object


class Ledger(tuple[Event, ...]):
    """The events of a sweep, in the order of its ledger."""

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        """Those of a kind."""
        return [event for event in self if isinstance(event, kind)]

    @property
    def plans(self) -> list[CellsPlanned]:
        """Those that count, oldest first."""
        withdrawn = {event.generation for event in self.all(PlanWithdrawn)}
        return [plan for plan in self.all(CellsPlanned) if (plan.generation or 1) not in withdrawn]


def read_ledger(ledger: Path) -> Ledger:
    """The events of a sweep so far. Raises OSError for what is no file of its folder."""
    records = read_json_lines(ledger, ledger.parent, _LEDGER_BYTES, _LEDGER_BYTES)
    return Ledger(event for record in records if (event := event_of(record, LedgerEvent.kinds)) is not None)
