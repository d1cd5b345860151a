"""All runs of a folder, kept in memory by a thread that looks again and again at what changed."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.review.charts.series import GrowingSeries, Series
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.stored_index.index_file import Entry, read_index, write_index
from orchestrator.review.stored_index.signatures import Signature, signature, signatures_in
from orchestrator.review.summary import summarize_each, with_goodput
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.runs_folder import misplaced_runs

SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_QUESTIONS = 15.0
"""To the scheduler, about a run whose files did not change."""
SECONDS_BETWEEN_SECOND_LOOKS = 60.0
"""At a run that does not train and has no job: only a change of its files, which is seen at once, makes it go on."""
_RUNS_AT_FIRST = 12
_RUNS_AT_A_TIME = 40
SERIES_BYTES = 90 << 20
_GOODPUT_SHARE = 0.05
"""Of this thread's time: the goodput of a long run that goes on takes a second to find out, again and again."""
_ENDED = ("completed", "stopped", "cancelled", "failed")
_RESTING = ("created", "imported", "lost")
_SECONDS_OF_REST = 0.02

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Staleness:
    """What is known is not up to date. `since`: seconds since the epoch; `problem`: why, in one line."""

    since: float
    problem: str


@dataclass(frozen=True)
class _Known:
    """A run as it was last read. `read`, and `goodput_due`, from when its goodput may be found out anew: seconds of
    the monotonic clock. `goodput_of`: what the run was when that was done last.
    """

    summary: RunSummary
    signature: Signature
    read: float
    goodput_due: float = 0.0
    goodput_of: Signature | None = None


class RunIndex:
    """The runs of a folder. Safe for use by several threads; `look` itself is called by one."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self.is_complete = False
        """Whether every run was read once."""
        self.misplaced: list[str] = []
        """Folders with a run that is none of these, as they are not where runs are."""
        self.behind: Staleness | None = None
        """Why the last look at the folder failed; None where it did not."""
        self._looked = time.time()
        self._problems: dict[str, str | None] = {}
        self._known: dict[str, _Known] = {}
        self._stored: Mapping[str, Entry] = {}
        self._runs: tuple[RunSummary, ...] = ()
        self._series: OrderedDict[Path, GrowingSeries] = OrderedDict()
        self._reading = threading.Lock()
        self._stopping = threading.Event()
        self._has_begun = threading.Event()
        self._changing = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Look from now on, in threads."""
        for name, work in (("run-index", self._go_on_looking), ("run-goodput", self._go_on_with_goodput)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_the_first(self, seconds: float) -> None:
        """Wait until the first runs were read, or for so long; no time at all once that is so."""
        self._has_begun.wait(seconds)

    @property
    def runs(self) -> tuple[RunSummary, ...]:
        """What is known of all runs, the newest first."""
        return self._runs

    def folder(self, name: str, run_id: str) -> RunDir | None:
        """A run by its place in the folder, without reading it; None where there is none."""
        if not _is_file_name(name) or not _is_file_name(run_id):
            return None
        run = RunDir(self.runs_dir.absolute() / name / run_id)
        try:
            return run if run.resolved_generations() else None
        except (OSError, ValueError):  # no name that a folder can have, or links that lead nowhere
            return None

    def find(self, name: str, run_id: str) -> RunSummary | None:
        """A run by its place in the folder, as it is at this moment; None where there is none."""
        run = self.folder(name, run_id)
        if run is None:
            return None
        known = self._known.get(str(run.path))
        # Reading one on a cluster asks the scheduler, which is not asked anew by everybody who looks at it.
        asks = known is not None and known.summary.job_id is not None
        if known is not None and asks and not self._is_due(str(run.path), signature(run), time.monotonic()):
            return known.summary
        fresh = summarize_each([run])[0]
        return _with_goodput_of(known.summary, fresh) if known is not None else fresh

    @contextmanager
    def reading(self, run: RunDir) -> Iterator[Series]:
        """The measurements of a run, up to now, which stay as they are within the block; one block at a time is in
        hand, so that memory has a bound. The runs that were asked for last are kept. Raises OSError where the log
        cannot be read.
        """
        with self._reading:
            growing = self._series.pop(run.path, None) or GrowingSeries(run.metrics_file)
            found = growing.refresh()
            self._series[run.path] = growing
            while len(self._series) > 1 and sum(each.series.bytes for each in self._series.values()) > SERIES_BYTES:
                self._series.popitem(last=False)
            yield found

    def look(self) -> None:
        """Bring everything but the goodput up to date, what was written last first."""
        if not self.is_complete:
            self._stored = read_index(self.runs_dir)
        settled = {path: entry.signature for path, entry in self._stored.items()}
        settled |= {path: each.signature for path, each in self._known.items() if each.summary.is_settled}
        signatures = signatures_in(self.runs_dir, settled)
        self.misplaced = misplaced_runs(self.runs_dir)
        with self._changing:
            for path in [path for path in self._known if path not in signatures]:
                del self._known[path]
        for path, found in signatures.items():
            entry = self._stored.get(path)
            if path not in self._known and entry is not None and entry.signature == found:
                self._keep(path, entry.summary, found)
        now = time.monotonic()
        changed = [path for path, found in signatures.items() if self._is_due(path, found, now)]
        changed.sort(key=lambda path: signatures[path], reverse=True)
        begin = 0
        while begin < len(changed):
            if self._stopping.is_set():
                return
            part = changed[begin : begin + (_RUNS_AT_A_TIME if begin else _RUNS_AT_FIRST)]
            begin += len(part)
            summaries = summarize_each([RunDir(Path(path)) for path in part], with_disk_use=True)
            for path, summary in zip(part, summaries, strict=True):
                self._keep(path, summary, signatures[path])
            self._publish()
            self._has_begun.set()
        self.is_complete = True
        self._publish()
        self._has_begun.set()
        if changed:
            self._store()

    def _store(self) -> None:
        """Keep what is known for whoever starts next."""
        with self._changing:
            known = {path: Entry(_certain(each), each.signature) for path, each in self._known.items()}
        if write_index(self.runs_dir, known, self._stored):
            self._stored = known

    def find_goodput(self) -> None:
        """Bring the goodput up to date, for which all that a run measured is read."""
        with self._changing:
            waiting = [known for known in self._known.values() if known.goodput_of != known.signature]
        begun = published = time.monotonic()
        for known in waiting:
            begun = time.monotonic()
            if begun < known.goodput_due:
                continue
            if self._stopping.is_set():
                return
            found = with_goodput(known.summary, time.time(), self._rest)
            ended = time.monotonic()
            self._keep_goodput(known, found, due=ended + (ended - begun) / _GOODPUT_SHARE)
            self._stopping.wait(ended - begun)  # half of the time is for pages
            if ended - published > SECONDS_BETWEEN_LOOKS:
                self._publish()
                published = ended
        self._publish()
        if waiting:
            self._store()

    def _go_on_looking(self) -> None:
        while not self._stopping.is_set():
            problem = self._try(self.look)
            self.behind = Staleness(self._looked, problem) if problem is not None else None
            if problem is None:
                self._looked = time.time()
            self._has_begun.set()  # where nothing can be read, pages say so
            self._stopping.wait(SECONDS_BETWEEN_LOOKS)

    def _go_on_with_goodput(self) -> None:
        while not self._stopping.is_set():
            if self.is_complete:
                self._try(self.find_goodput)
            self._stopping.wait(SECONDS_BETWEEN_LOOKS)

    def _try(self, work: Callable[[], None]) -> str | None:
        """Do it; why it failed. Whatever that is, it is tried again: a thread that ended would leave pages of the past.
        The same problem is logged once.
        """
        problem = None
        try:
            work()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            if self._problems.get(work.__name__) != problem:
                logger.exception("runs in %s cannot be read", self.runs_dir)
        self._problems[work.__name__] = problem
        return problem

    def _rest(self) -> None:
        """Leave time for pages; while one waits for measurements, all of it."""
        self._stopping.wait(_SECONDS_OF_REST)
        with self._reading:
            pass

    def _is_due(self, path: str, found: Signature, now: float) -> bool:
        known = self._known.get(path)
        if known is None or known.signature != found:
            return True
        if known.summary.state in _ENDED:
            return False
        if known.summary.job_id is not None:
            return now - known.read > _SECONDS_BETWEEN_QUESTIONS
        return known.summary.state not in _RESTING or now - known.read > SECONDS_BETWEEN_SECOND_LOOKS

    def _keep(self, path: str, summary: RunSummary, found: Signature) -> None:
        with self._changing:
            earlier = self._known.get(path)
            if earlier is None:
                goodput_of = found if summary.goodput is not None else None  # it comes from the stored index
                self._known[path] = _Known(summary, found, time.monotonic(), goodput_of=goodput_of)
                return
            summary = _with_goodput_of(earlier.summary, summary)
            self._known[path] = replace(earlier, summary=summary, signature=found, read=time.monotonic())

    def _keep_goodput(self, known: _Known, found: RunSummary, due: float) -> None:
        path = str(found.run.path)
        with self._changing:
            now = self._known.get(path)
            if now is not None:
                summary = _with_goodput_of(found, now.summary)
                self._known[path] = replace(now, summary=summary, goodput_due=due, goodput_of=known.signature)

    def _publish(self) -> None:
        with self._changing:
            found = [known.summary for known in self._known.values()]
        self._runs = tuple(sorted(found, key=lambda run: (-_moment(run.created), run.key)))


def _is_file_name(text: str) -> bool:
    """Whether it names something in a folder, and nothing outside."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def _moment(value: float | None) -> float:
    """What can be compared with any other time."""
    return value if value is not None and not math.isnan(value) else 0.0


def _certain(known: _Known) -> RunSummary:
    """Without a goodput of the time before its files changed."""
    if known.goodput_of == known.signature or known.summary.goodput is None:
        return known.summary
    return replace(known.summary, goodput=None, lost_steps=None)


def _with_goodput_of(earlier: RunSummary, fresh: RunSummary) -> RunSummary:
    disk_bytes = earlier.disk_bytes if fresh.disk_bytes is None else fresh.disk_bytes
    return replace(fresh, goodput=earlier.goodput, lost_steps=earlier.lost_steps, disk_bytes=disk_bytes)
