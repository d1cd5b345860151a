"""Every event of a sweep's ledger, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable
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

    def with_drawn(self, trials: Iterable[TrialDrawn]) -> CellsPlanned:
        """The same sweep with cells that were drawn since."""
        values = {name: getattr(self, name) for name in self.types}
        drawn = list(trials)
        cells = [trial.cell for trial in drawn if trial.cell is not None]
        refused = [trial.refused for trial in drawn if trial.refused is not None]
        return CellsPlanned(
            **values | {"cells": [*(self.cells or ()), *cells], "pruned": [*(self.pruned or ()), *refused]}
        )


class PlanWithdrawn(LedgerEvent, name="withdrawn"):
    """Nothing of that plan was started, and it does not count."""

    generation: Count


class TrialDrawn(LedgerEvent, name="trial_drawn"):
    """The sweep has one more cell ({id, name, values, run}), whose values a search has drawn: {field: number, or the
    number of its choice}. `refused`: why no run can be made of them.
    """

    number: Count
    draws: Object
    cell: Object = None
    refused: Object = None


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
        """Those that count, oldest first, each with the cells that were drawn after it."""
        withdrawn = {event.generation for event in self.all(PlanWithdrawn)}
        found: list[CellsPlanned] = []
        drawn: list[list[TrialDrawn]] = []
        for event in self:
            if isinstance(event, CellsPlanned) and (event.generation or 1) not in withdrawn:
                found.append(event)
                drawn.append([])
            elif isinstance(event, TrialDrawn) and drawn:
                drawn[-1].append(event)
        return [plan.with_drawn(each) if each else plan for plan, each in zip(found, drawn, strict=True)]


def read_ledger(ledger: Path) -> Ledger:
    """The events of a sweep so far. Raises OSError for what is no file of its folder."""
    records = read_json_lines(ledger, ledger.parent, _LEDGER_BYTES, _LEDGER_BYTES)
    return Ledger(event for record in records if (event := event_of(record, LedgerEvent.kinds)) is not None)
