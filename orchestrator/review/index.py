"""All runs of a folder, kept in memory by a thread that looks again and again at what changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.launch.runs import run_folders
from orchestrator.review.series import GrowingSeries, Series
from orchestrator.review.summary import RunSummary, summarize_each, with_goodput
from orchestrator.rundir import RunDir

_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_QUESTIONS = 15.0
"""To the scheduler, about a run whose files did not change."""
_RUNS_AT_A_TIME = 40
_SERIES_BYTES = 120 << 20
_GOODPUT_SHARE = 0.05
"""Of this thread's time: the goodput of a long run that goes on takes a second to find out, again and again."""
_ENDED = ("completed", "stopped", "failed")

Signature = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Known:
    """A run as it was last read. `read`, and `goodput_due`, from when its goodput is to be found out anew: seconds of
    the monotonic clock.
    """

    summary: RunSummary
    signature: Signature
    read: float
    goodput_due: float = 0.0
    has_goodput: bool = False


class RunIndex:
    """The runs of a folder. Safe for use by several threads; `look` itself is called by one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.is_complete = False
        """Whether every run was read once."""
        self._known: dict[Path, _Known] = {}
        self._runs: tuple[RunSummary, ...] = ()
        self._series: OrderedDict[Path, GrowingSeries] = OrderedDict()
        self._reading = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread = threading.Thread(target=self._go_on_looking, name="run-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """What is known of all runs, the newest first."""
        return self._runs

    def find(self, name: str, run_id: str) -> RunSummary | None:
        """A run by its place in the folder, as it is at this moment; None where there is none."""
        run = RunDir(self.runs_dir.absolute() / name / run_id)
        known = self._known.get(run.path)
        if not run.resolved_generations():
            return None
        fresh = summarize_each([run])[0]
        return _with_goodput_of(known.summary, fresh) if known is not None else fresh

    def series(self, run: RunDir) -> Series:
        """The measurements of a run, up to now. The runs that were asked for last are kept in memory."""
        with self._reading:
            growing = self._series.pop(run.path, None) or GrowingSeries(run.metrics_file)
            self._series[run.path] = growing
            found = growing.refresh()
            while len(self._series) > 1 and sum(each.series.bytes for each in self._series.values()) > _SERIES_BYTES:
                self._series.popitem(last=False)
            return found

    def look(self) -> None:
        """Bring everything up to date: first what changed, the newest first, then what takes long to find out."""
        signatures = {run.path: signature(run) for run in run_folders(self.runs_dir)}
        for path in [path for path in self._known if path not in signatures]:
            del self._known[path]
        now = time.monotonic()
        changed = [path for path, found in signatures.items() if self._is_due(path, found, now)]
        changed.sort(key=lambda path: signatures[path], reverse=True)
        for begin in range(0, len(changed), _RUNS_AT_A_TIME):
            if self._stopping.is_set():
                return
            part = changed[begin : begin + _RUNS_AT_A_TIME]
            for path, summary in zip(part, summarize_each([RunDir(path) for path in part]), strict=True):
                self._keep(path, summary, signatures[path])
            self._publish()
        self.is_complete = True
        self._publish()
        self._find_goodput()

    def _go_on_looking(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(_SECONDS_BETWEEN_LOOKS)

    def _is_due(self, path: Path, found: Signature, now: float) -> bool:
        known = self._known.get(path)
        if known is None or known.signature != found:
            return True
        if known.summary.state in _ENDED:
            return False
        return known.summary.job_id is None or now - known.read > _SECONDS_BETWEEN_QUESTIONS

    def _keep(self, path: Path, summary: RunSummary, found: Signature) -> None:
        earlier = self._known.get(path)
        if earlier is None:
            self._known[path] = _Known(summary, found, time.monotonic())
            return
        summary = _with_goodput_of(earlier.summary, summary)
        stays = earlier.has_goodput and earlier.signature == found
        self._known[path] = _Known(summary, found, time.monotonic(), earlier.goodput_due, stays)

    def _find_goodput(self) -> None:
        for path, known in list(self._known.items()):
            begun = time.monotonic()
            if self._stopping.is_set():
                return
            if known.has_goodput or begun < known.goodput_due:
                continue
            summary = with_goodput(known.summary, time.time())
            ended = time.monotonic()
            due = ended + (ended - begun) / _GOODPUT_SHARE
            self._known[path] = replace(known, summary=summary, goodput_due=due, has_goodput=True)
        self._publish()

    def _publish(self) -> None:
        found = (known.summary for known in self._known.values())
        self._runs = tuple(sorted(found, key=lambda run: (-(run.created or 0.0), run.key)))


def _with_goodput_of(earlier: RunSummary, fresh: RunSummary) -> RunSummary:
    return replace(fresh, goodput=earlier.goodput, lost_steps=earlier.lost_steps)


def signature(run: RunDir) -> Signature:
    """Changes whenever a summary may say something else, but for the passing of time and the scheduler's word."""
    return tuple(_stat(path) for path in (run.events_file, run.metrics_file, run.path, run.lease, run.checkpoints))


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
