"""Jobs of a file's tests that are trained one after the other in the same processes: `Ranks.train_several`.

What goes on from a checkpoint does so in other processes than those that saved it: a state that were not restored might
still be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from support.faults import SAVED_LESS, Ranks
from support.training import events, is_completed, logs, make_run

Key = TypeVar("Key")


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """A parameter's values in those tests of the requesting test's file that this session runs: no others need be
    trained.
    """
    tests = (item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function))
    found = (test.callspec.params.get(parameter) for test in tests if hasattr(test, "callspec"))
    return [*dict.fromkeys(value for value in found if value is not None)]


class TrainedTogether(Generic[Key]):
    """trained[key] -> the completed run of a job. With the first, all jobs of as many ranks are trained."""

    def __init__(
        self,
        ranks: Ranks,
        folder: Path,
        jobs: Mapping[Key, JobSpec],
        inject: Path | Callable[[Key], Path | None] | None = None,
        saved: Path | None = None,
    ) -> None:
        """`inject`: executed by each rank before its first job; where jobs differ in it, what it is for each. `saved`:
        UNSAVED or WEIGHTS_ALONE, where no job saves all and `inject` is something else.
        """
        self._ranks, self._trained = ranks, set[tuple[int, Path | None]]()
        self._jobs = jobs
        injected = {key: inject(key) if callable(inject) else inject for key in jobs}
        self._saved = {key: each if each in SAVED_LESS else saved for key, each in injected.items()}
        self._groups = {
            key: (job.world_size, None if injected[key] in SAVED_LESS else injected[key]) for key, job in jobs.items()
        }
        self._runs = {key: make_run(folder / str(number), job) for number, (key, job) in enumerate(jobs.items())}

    def run_of(self, key: Key) -> RunDir:
        """The run of a job, whether it was trained or not."""
        return self._runs[key]

    def steps_of(self, key: Key) -> int:
        """How many steps a job has."""
        steps = self._jobs[key].schedule.train_iters
        assert steps is not None
        return steps

    def completes(self, key: Key) -> bool:
        """Whether a job came to its end."""
        size, inject = group = self._groups[key]
        if group not in self._trained:
            self._trained.add(group)
            runs = [run for each, run in self._runs.items() if self._groups[each] == group]
            saved = {self._runs[each]: path for each, path in self._saved.items()}
            self._ranks.train_several(runs, size, inject=inject, saved=saved)
        return is_completed(self._runs[key], size)

    def __getitem__(self, key: Key) -> RunDir:
        assert self.completes(key), logs(self._runs[key])
        return self._runs[key]


class ResumedTogether(Generic[Key]):
    """resumed[key] -> a run of `trained` that has gone on from its end as another job. With the first, all of as many
    ranks do.
    """

    def __init__(self, ranks: Ranks, trained: TrainedTogether[Key], jobs: Mapping[Key, JobSpec]) -> None:
        self._ranks, self._trained, self._jobs = ranks, trained, jobs
        self._resumed = set[int]()

    def __getitem__(self, key: Key) -> RunDir:
        run, size = self._trained[key], self._jobs[key].world_size
        if size not in self._resumed:
            self._resumed.add(size)
            jobs = {each: job for each, job in self._jobs.items() if job.world_size == size}
            runs = {each: self._trained.run_of(each) for each in jobs if self._trained.completes(each)}
            for each, its_run in runs.items():
                make_run(its_run.path.parents[1], jobs[each])
            self._ranks.train_several([*runs.values()], size, launch_id="second")
        assert is_completed(run, size, "second"), logs(run)
        # Without its checkpoint it would have trained all of its steps, with the losses of the same job in one go.
        assert [event["iteration"] for event in events(run, "resumed")] == [self._trained.steps_of(key)], logs(run)
        return run
