"""Runs: how they are doing, and what they measured, printed and saved."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.housekeeping import deletion, emptying, labelling
from orchestrator.api.housekeeping.checkpoints import Keep
from orchestrator.api.housekeeping.targets import find_target
from orchestrator.api.overrides import override_words
from orchestrator.api.starts.continuation import NoStart, StartOptions, no_start_sentence
from orchestrator.api.starts.local import train_quietly
from orchestrator.api.starts.reporter import reporter_for
from orchestrator.api.starts.resuming import resumption
from orchestrator.api.starts.stopping import stop
from orchestrator.api.starts.submission import submit_and_tell
from orchestrator.errors import MissingDependency
from orchestrator.launch.logs import LogFollower
from orchestrator.launch.runs import find_run as find_run_folder
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.planning.training_schedule.spec_history import periods_of
from orchestrator.review.charts.series import GrowingSeries
from orchestrator.review.filters.listing import matching, summaries_in
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, iteration_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Run:
    """A run, by its folder. Everything is read anew at each call."""

    path: Path

    @property
    def name(self) -> str:
        """Of its job."""
        return self._folder.name

    @property
    def run_id(self) -> str:
        """What tells it from other runs of the job."""
        return self._folder.run_id

    @property
    def _folder(self) -> RunDir:
        return RunDir(self.path)

    def spec(self) -> JobSpec:
        """The job that it runs, complete. Raises UserError where it cannot be read."""
        return load_resolved(self._folder.resolved())

    def status(self) -> RunStatus:
        """Its state, why it ended, how far it is, and the latest values."""
        return status_of(self._folder)

    def metrics(self) -> DataFrame:
        """What it measured: a row for each iteration, a column for each metric, NaN where it was not measured. Beside
        these are `time` (in UTC), `samples` and `tokens` consumed until then; `start`, the number of the start that did
        the step, and `resumed`, true where another start went on; and `stage`, the number of the spec
        that it followed: a resume with a changed spec begins the next. A step that was done again after a crash has one
        row, with what counts.

        Raises MissingDependency where pandas is not installed, and UserError where the run's spec cannot be read.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingDependency("a table of metrics needs pandas: pip install pandas") from error
        series = GrowingSeries(self._folder.metrics_file).refresh()
        count = bisect_left(series.iterations, series.position + 1)
        index = pandas.Index(list(series.iterations[:count]), name="iteration", dtype="int64")
        events = self._folder.events()
        begun = [started.iteration or 0 for started in events.all(Started)]
        starts = [_start_of(iteration, begun) for iteration in index]
        stages = [period.iteration for period in periods_of(self._folder, events)]
        columns = {
            "time": pandas.to_datetime(list(series.times[:count]), unit="s", utc=True),
            "samples": pandas.array(list(series.samples[:count]), dtype="int64"),
            "tokens": pandas.array(list(series.tokens[:count]), dtype="int64"),
            "start": starts,
            "resumed": [now != before for before, now in pairwise([*starts[:1], *starts])],
            "stage": [bisect_left(stages, iteration) for iteration in index],
        }
        table = pandas.DataFrame(columns, index=index)
        measured = {key: series.measured(key) for key in series.columns}
        values = {
            key: pandas.Series(list(column.values), index=list(column.iterations), dtype="float64").reindex(index)
            for key, column in measured.items()
            if column is not None
        }
        return pandas.concat([table, pandas.DataFrame(values, index=index)], axis=1)

    def logs(self, *, rank: int | None = None, lines: int | None = None) -> list[tuple[str, str]]:
        """What its launcher and its ranks printed, or one rank: (log, line); of each log the last `lines` alone."""
        follower = LogFollower(self._folder, rank, lines)
        return list(chain.from_iterable(iter(follower.poll, [])))

    def resume(
        self,
        overrides: Mapping[str, Any] | None = None,
        *,
        allow_changes: bool = False,
        allow_warnings: bool = False,
        from_scratch: bool = False,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """Continue it from its last checkpoint, where it ran before: here to its end, or in the queue of its cluster.
        `overrides` change its spec from there on, `{"schedule.train_iters": 2000}`; those that alter the course of the
        training need `allow_changes`. `say` hears what happens, a line a call.

        Raises UserError with what keeps it from starting, and JobError where it does not complete.
        """
        run, reporter = self._folder, reporter_for(say)
        options = StartOptions(False, allow_changes, allow_warnings, from_scratch)
        start = resumption(run, [], override_words(overrides), options, reporter)
        if isinstance(start, NoStart):
            reporter.say(no_start_sentence(start))
        elif start.cluster is None:
            train_quietly(run, start.job, reporter, from_scratch=from_scratch)
        else:
            submit_and_tell(run, start.job, start.cluster, reporter, from_scratch=from_scratch, after=())

    def stop(self, *, now: bool = False, wait: bool = True, say: Callable[[str], object] | None = None) -> RunStatus:
        """Have it save after its current step and end, wherever it runs, as `orchestrator cancel` does; `now` ends it
        at once, with the checkpoints that it has. Returns its status, after its end unless it does not `wait`.

        Raises JobError where its processes cannot be reached.
        """
        return stop(self._folder, reporter_for(say), now=now, wait=wait, by="Run.stop").status

    def checkpoints(self) -> list[Commit]:
        """Those that are committed, oldest first."""
        return committed(self._folder)

    def labels(self) -> Labels:
        """The name that it was given, former names, tags, note, and whether it is archived."""
        return read_labels(self.path)

    def tag(self, *tags: str, remove: Sequence[str] = ()) -> Labels:
        """Add tags, and remove others. This and the next three work also while it trains, and start nothing."""
        return labelling.tag(self._folder, tags, remove)

    def note(self, text: str) -> Labels:
        """Give it this note in place of the one that it has; an empty one for none."""
        return labelling.note(self._folder, text)

    def rename(self, name: str) -> Labels:
        """Have it shown as `name`; its folder and id stay. Raises UserError for what is no name, or another's."""
        return labelling.rename(self._folder, name)

    def archive(self, *, undo: bool = False) -> Labels:
        """Hide it from lists, or show it again."""
        return labelling.archive(self._folder, undo=undo)

    def delete(self) -> None:
        """Move it to the trash of its runs folder. Raises UserError where it is live or in a queue, or its weights are
        needed by another run.
        """
        delete(self.path, runs_dir=self.path.parent.parent)

    def delete_checkpoints(self, *, keep_last: int = 0, keep_best: bool = False) -> list[int]:
        """Move its checkpoints to the trash but for the newest `keep_last` and, with `keep_best`, the one with the
        lowest loss; returns their iterations. Raises UserError where one is needed: by itself, while it is live, or by
        another run.
        """
        runs_dir = self.path.parent.parent
        doomed = deletion.checkpoints(self._folder, runs_dir, Keep(keep_last, keep_best))
        deletion.delete(doomed, runs_dir)
        return [iteration for each in doomed if (iteration := iteration_of(Path(each.place))) is not None]


def _start_of(iteration: int, begun: list[int]) -> int:
    """The number of the start that did an iteration last. `begun`: the iteration that each went on from."""
    return max((number for number, before in enumerate(begun, 1) if before < iteration), default=1)


def find_run(which: str | os.PathLike[str], runs_dir: str | os.PathLike[str] | None = None) -> Run:
    """The run of an id, of the beginning of one, of a job's name (the one that was chosen last), of a name that it was
    given, now or before, or of a folder.

    Raises RunNotFound where there is none, and UserError where several are meant.
    """
    return Run(find_run_folder(os.fspath(which), _folder_of(runs_dir)).path)


def runs(
    name: str | None = None, *, where: str | None = None, runs_dir: str | os.PathLike[str] | None = None
) -> list[Run]:
    """All runs of a folder, or those of one name, oldest first. `where`: only those that match a filter, which is
    written as for `orchestrator list --where`: `"optimizer.lr > 1e-4 and loss < 3"`. Raises UserError for one that
    makes no sense.
    """
    # Without a filter, too: the index says their names and their order faster than thousands of event logs.
    found = [run for run in summaries_in(_folder_of(runs_dir)) if name in (None, *run.names)]
    chosen = matching(found, [] if where is None else [("where", where)], archived=True)
    return [Run(run.run.path) for run in chosen]


def delete(*names: str | os.PathLike[str], runs_dir: str | os.PathLike[str] | None = None) -> None:
    """Move runs, or sweeps with their cells, to the trash of their folder: all of them, or none where one is refused.

    Raises RunNotFound, and UserError where one is live or in a queue, or another run needs its weights.
    """
    folder = _folder_of(runs_dir)
    targets = [find_target(os.fspath(name), folder) for name in names]
    deletion.delete(deletion.runs_and_sweeps(targets, folder), folder)


def undelete(*names: str, runs_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Put back what was deleted last under these names, and return where it is. Raises RunNotFound where that is not in
    the trash, and UserError where something else is in its place.
    """
    folder = _folder_of(runs_dir)
    entries = {entry.path: entry for name in names for entry in emptying.deleted_as(name, folder)}
    return emptying.undo(list(entries.values()), folder)


def prune(*, older_than: float = 0.0, runs_dir: str | os.PathLike[str] | None = None) -> int:
    """Remove for good what was deleted more than so many seconds ago; returns the bytes that this frees."""
    folder = _folder_of(runs_dir)
    entries = emptying.to_prune(folder, older_than)
    emptying.prune(entries, folder)
    return sum(entry.bytes for entry in entries)


def _folder_of(runs_dir: str | os.PathLike[str] | None) -> Path:
    return default_runs_dir() if runs_dir is None else Path(runs_dir)
