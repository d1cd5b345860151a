"""What pages show of the measurements of runs: read one run at a time, and kept as far as it is small."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from orchestrator.files.stored_files import number
from orchestrator.review.cache import Cache
from orchestrator.review.charts.axes import XAxis
from orchestrator.review.charts.catalogue import Chart
from orchestrator.review.charts.changes import Position, position_of
from orchestrator.review.charts.curves import Curve, View, curves_of
from orchestrator.review.charts.series import Series
from orchestrator.review.compare import Facts, facts_of
from orchestrator.review.damage import readable
from orchestrator.review.index import RunIndex
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.stored_index.signatures import Stat, signature
from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.goodput import Goodput, goodput_of

_MOST_POINTS = 400_000
"""Of all curves that are kept: some 25 MB."""
_MOST_BYTES = 32 << 20
_FACTS_BYTES = 4 << 10
_MOST_TIMES = 256
_MOST_KEY_BYTES = 4 << 20
_KEY_BYTES = 80
"""Beside the characters of a name, of which several runs have the same."""
_SECONDS_OF_TIME_SPENT = 30


@dataclass(frozen=True)
class _Drawn:
    """The curves of a run by their charts, and how far its measurements were read for the first of them."""

    curves: Mapping[str, tuple[Curve, ...]]
    position: Position


class SeriesCache:
    """Curves and figures of runs, which take long to read. Safe for use by several threads."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._curves: Cache[_Drawn] = Cache(_MOST_POINTS)
        self._facts: Cache[Facts] = Cache(_MOST_BYTES)
        self._spent: Cache[Goodput] = Cache(_MOST_TIMES)
        self._keys: Cache[Mapping[str, float]] = Cache(_MOST_KEY_BYTES)
        self._finding = threading.Lock()

    @contextmanager
    def reading(self, run: RunDir, x: XAxis = "steps") -> Iterator[Series]:
        """The measurements of a run up to now, with what this axis needs; one block at a time is in hand. Raises
        OSError where they cannot be read.
        """
        with self._index.reading(run) as series:
            if x == "flops" and series.flops_per_token is None:
                series.flops_per_token = _flops_per_token(run)
            latest = {key: column.values[-1] for key, column in series.columns.items() if column.values}
            self._keys.put(run.path, latest, sum(_KEY_BYTES + len(key) for key in latest))
            yield series

    def latest(self, run: RunSummary) -> Mapping[str, float]:
        """The last value of each metric of a run, as far as that is known without reading all that it has measured: a
        summary knows the end of it.
        """
        return {**(self._keys.get(run.run.path) or {}), **run.values}

    def curves(
        self, run: RunDir, chart: Chart, view: View, among: Iterable[Chart] = ()
    ) -> tuple[tuple[Curve, ...], Position]:
        """The curves of a run in a chart, and up to where they have all points. Those in `among`, the charts that will
        be asked for with it, are made while its measurements are at hand. Raises OSError where these cannot be read.
        """
        version = _version(run)  # before it is read: what comes meanwhile is read again
        key = (run.path, version, replace(view, log=False))  # which changes no point
        kept = self._curves.get(key)
        if kept is None or chart.name not in kept.curves:
            with self.reading(run, view.x) as series:
                self._note(run, version, series)  # a page that shows curves of several runs asks for their facts, too
                kept = self._curves.get(key) or _Drawn({}, position_of(run, series))
                if chart.name not in kept.curves:  # whoever waited finds what another one made
                    left = (each for each in (chart, *among) if each.name not in kept.curves)
                    made = {each.name: curves_of(each, series, view) for each in left}
                    kept = replace(kept, curves={**kept.curves, **made})
                    size = sum(1 + curve.size for curves in kept.curves.values() for curve in curves)
                    self._curves.put(key, kept, size)
        return kept.curves[chart.name], kept.position

    def time_spent(self, run: RunSummary) -> Goodput:
        """Where a run's time went; of one at work, as it was up to half a minute ago. One reading at a time is in hand.
        Raises OSError where its logs cannot be read.
        """
        now = time.time()
        # What it measures changes all the time: its visitors share what was found out in the same half minute.
        key = (run.run.path, int(now // _SECONDS_OF_TIME_SPENT) if run.is_active else signature(run.run)[:2])
        with self._finding:
            found = self._spent.get(key)
            if found is None:
                found = goodput_of(run.run, now if run.is_active else None)
                self._spent.put(key, found)
        return found

    def facts(self, run: RunDir) -> Facts:
        """What a run is compared by. Raises OSError where its measurements cannot be read."""
        version = _version(run)
        found = self._facts.get((run.path, version))
        if found is not None:
            return found
        with self._index.reading(run) as series:
            return self._note(run, version, series)

    def _note(self, run: RunDir, version: Stat, series: Series) -> Facts:
        """The facts of measurements that are at hand."""
        key = (run.path, version)
        found = self._facts.get(key)
        if found is None:
            found = facts_of(series)
            self._facts.put(key, found, _FACTS_BYTES + found.bytes)
        return found


def _flops_per_token(run: RunDir) -> float | None:
    """Of the model, forward and backward, as its latest start counted them."""
    events, _ = readable(run.events)
    started = events.last(Started) if events else None
    return number((started.mfu or {}).get("flops_per_token"), least=0.0) if started else None


def _version(run: RunDir) -> Stat:
    """Changes whenever something was measured."""
    return signature(run)[1]
