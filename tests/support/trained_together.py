"""Jobs of a file's tests that are trained one after the other in the same processes: `Ranks.train_several`.

What goes on from a checkpoint does so in other processes than those that saved it: a state that were not restored might
still be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from support.faults import PATIENCE, SEVERAL_JOBS, Ranks
from support.ranks import free_port
from support.training import is_completed, logs, make_run

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

    def __init__(self, ranks: Ranks, folder: Path, jobs: Mapping[Key, JobSpec], inject: Path | None = None) -> None:
        """`inject`: executed by each rank before its first job."""
        self._ranks, self._inject, self._trained = ranks, inject, set[int]()
        self._sizes = {key: job.world_size for key, job in jobs.items()}
        self._runs = {key: make_run(folder / str(number), job) for number, (key, job) in enumerate(jobs.items())}

    def run_of(self, key: Key) -> RunDir:
        """The run of a job, whether it was trained or not."""
        return self._runs[key]

    def __getitem__(self, key: Key) -> RunDir:
        size = self._sizes[key]
        if size not in self._trained:
            self._trained.add(size)
            runs = [run for each, run in self._runs.items() if self._sizes[each] == size]
            self._ranks.train_several(runs, size, inject=self._inject)
        run = self._runs[key]
        assert is_completed(run, size), logs(run)
        return run


class ResumedTogether(Generic[Key]):
    """resumed[key] -> a run of `trained` that has gone on as another job. With the first, all of as many ranks do."""

    def __init__(self, ranks: Ranks, trained: TrainedTogether[Key], jobs: Mapping[Key, JobSpec]) -> None:
        self._ranks, self._trained, self._jobs = ranks, trained, jobs
        self._resumed: dict[Key, RunDir] = {}

    def __getitem__(self, key: Key) -> RunDir:
        size = self._jobs[key].world_size
        if key not in self._resumed:
            jobs = {each: job for each, job in self._jobs.items() if job.world_size == size}
            self._resumed |= {each: make_run(self._trained[each].path.parents[1], job) for each, job in jobs.items()}
            first, *more = [word for each in jobs for word in (str(free_port()), str(self._resumed[each].path))]
            start = self._ranks.starter.start
            start(Path(first), size, *more, program=SEVERAL_JOBS, launch_id="second").wait(PATIENCE + 10 * len(jobs))
        run = self._resumed[key]
        assert is_completed(run, size, "second"), logs(run)
        return run
