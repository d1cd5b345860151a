"""Jobs: loaded and checked, planned, tuned, trained here and submitted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.api.overrides import override_words
from orchestrator.api.planned_job import PlannedJob, judge_named
from orchestrator.api.runs import Run
from orchestrator.api.starts.continuation import NoStart, StartOptions, no_start_sentence
from orchestrator.api.starts.local import prepare_quietly, run_here, start_quietly, train_quietly
from orchestrator.api.starts.reporter import Reporter, reporter_for
from orchestrator.api.starts.submission import requested, submit_job, with_cluster
from orchestrator.api.targets import TargetOptions, load_named
from orchestrator.api.tuning import search_layouts, tuning_task
from orchestrator.errors import UserError
from orchestrator.launch.executor_protocol import is_started_here
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.memory import capacity
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, load_text
from orchestrator.tuning.candidate_trials import CandidateTrials
from orchestrator.tuning.layout import settings_of
from orchestrator.tuning.overlay import overlay_settings, overlay_text


@dataclass(frozen=True)
class Job:
    """A job whose spec is right. `spec` has its sections, frozen, with every default filled in."""

    spec: JobSpec
    text: str
    """What was written."""
    _load: Callable[[Sequence[str], TargetOptions], LoadedJob] = field(repr=False)

    @property
    def name(self) -> str:
        """That of its runs."""
        return self.spec.name

    def changed(self, overrides: Mapping[str, Any]) -> Job:
        """The same job with other values, by their keys: `{"optimizer.lr": 1e-4}`. Raises SpecError."""
        words, load = override_words(overrides), self._load
        return _job(lambda others, named: load([*words, *others], named))

    def plan(self, *, cluster: str | os.PathLike[str] | None = None, gpu: str | None = None) -> PlannedJob:
        """What it will do and take, and the verdict, as `orchestrator plan` tells it. `cluster` (the name of a profile,
        or its file) and `gpu` (`"H100"`) stand in place of those that the job names.

        Raises SpecError where the job cannot be planned, or not for these.
        """
        named = _named(cluster, gpu)
        return judge_named(self._load([], named), named)

    def tune(
        self,
        *,
        gpus: int | None = None,
        gpu: str | None = None,
        cluster: str | os.PathLike[str] | None = None,
        keep: Sequence[str] = (),
    ) -> TunedJob:
        """Its fastest layouts that fit, as `orchestrator tune` finds them: the model, the data, the optimizer and the
        global batch stay as they are, and so do the settings that `keep` names. Nothing is run.

        Raises SpecError where the job cannot be planned for these GPUs, and UserError where no layout fits.
        """
        named = _named(cluster, gpu)
        task = tuning_task(self._load([], named), named, [], keep, gpus)
        found = search_layouts(task)
        ranking = CandidateTrials(found.fitting, task.estimates.memory_bytes).ranking()
        layouts = tuple(
            TunedLayout(
                settings_of(each.candidate.layout),
                each.step_seconds,
                each.candidate.time.tokens_per_second_per_gpu,
                each.candidate.time.mfu,
                each.device_bytes,
                capacity(each.candidate.memory, task.choice.device) == "tight",
            )
            for each in ranking
        )
        best, on_gpus = ranking[0].candidate.layout, task.space.job
        settings = overlay_settings(best, on_gpus, gpu)
        values = {f"{section}.{key}": value for section, keys in settings.items() for key, value in keys.items()}
        return TunedJob(self.changed(values), layouts, overlay_text(best, on_gpus, [], gpu))

    def run(
        self,
        *,
        runs_dir: str | os.PathLike[str] | None = None,
        new: bool = False,
        allow_changes: bool = False,
        allow_warnings: bool = False,
        from_scratch: bool = False,
        say: Callable[[str], object] | None = None,
    ) -> Run:
        """Train it on this machine to its end, as `orchestrator run` does: the same spec again continues its run. Data
        sets that are missing are made first. `say` hears what happens, a line a call. Ctrl-C saves and stops.

        Raises SpecError and other UserErrors with what keeps it from starting, SpecChanged where its run has another
        spec and neither `new` nor `allow_changes` says what to do, and JobError where it does not complete.
        """
        loaded, reporter = self._load([], TargetOptions()), reporter_for(say)

        def train(run: RunDir, job: JobSpec) -> RunDir:
            train_quietly(run, job, reporter, from_scratch=from_scratch)
            return run

        done = run_here(
            loaded,
            None if runs_dir is None else Path(runs_dir),
            StartOptions(new, allow_changes, allow_warnings, from_scratch),
            reporter,
            prepare=lambda: prepare_quietly(loaded.job),
            train=train,
        )
        return _not_started(done, reporter) if isinstance(done, NoStart) else Run(done.path)

    def submit(
        self,
        cluster: str | os.PathLike[str] | None = None,
        *,
        runs_dir: str | os.PathLike[str] | None = None,
        after: Sequence[str | Run] = (),
        new: bool = False,
        allow_changes: bool = False,
        allow_warnings: bool = False,
        from_scratch: bool = False,
        say: Callable[[str], object] | None = None,
    ) -> Run:
        """Put it into the queue of a cluster, as `orchestrator submit` does: the name of a profile or its file, else
        the job's own, else the only one there is. It starts when the runs `after` have completed. A job with
        `launch.executor: local` or `ssh` is started from this machine, in the background.

        Raises what `run` raises before a start, and SchedulerError where the cluster's scheduler does not answer.
        """
        named, reporter = _named(cluster, None), reporter_for(say)
        loaded = self._load([], named)
        options = StartOptions(new, allow_changes, allow_warnings, from_scratch)
        if is_started_here(loaded.job):
            if cluster is not None or after:
                raise UserError(
                    f"launch.executor: {loaded.job.launch.executor} has no cluster, and waits for no run",
                    code="executor_without_waiting",
                )
            started = run_here(
                loaded,
                None if runs_dir is None else Path(runs_dir),
                options,
                reporter,
                prepare=lambda: prepare_quietly(loaded.job),
                train=lambda run, job: start_quietly(run, job, reporter, from_scratch=from_scratch),
            )
            return _not_started(started, reporter) if isinstance(started, NoStart) else Run(started.path)
        named = with_cluster(loaded, named)
        folder = runs_dir_of(loaded.job, None if runs_dir is None else Path(runs_dir))
        before = [each if isinstance(each, str) else str(each.path) for each in after]
        request = requested(loaded, named, folder, options, reporter, after=before, strict=False)
        done = submit_job(request, loaded, folder, options, reporter)
        return _not_started(done, reporter) if isinstance(done, NoStart) else Run(done.run.path)


class TunedLayout(NamedTuple):
    """A layout that fits, and what the plan estimates of it."""

    settings: dict[str, Any]
    """By section and key."""
    step_seconds: float
    tokens_per_second_per_gpu: float
    mfu: float | None
    """Of the peak in bf16; None on a CPU."""
    device_bytes: float
    """On the GPU that needs the most."""
    is_tight: bool
    """Whether that is nearly all there is."""


@dataclass(frozen=True)
class TunedJob:
    """What tuning found."""

    job: Job
    """With the fastest layout."""
    layouts: tuple[TunedLayout, ...]
    """All that fit, the fastest first."""
    overlay: str
    """The fastest as YAML, to be put over the job: `load_job("job.yaml", "overlay.yaml")`."""


def load_job(*files: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Job:
    """The job of YAML files, of which a later one goes over those before. `overrides`, which go over all, are values by
    their keys: `{"optimizer.lr": 1e-4}`.

    Raises SpecError with every problem, and UserError where a file cannot be read.
    """
    paths, words = [Path(file) for file in files], override_words(overrides)
    return _job(lambda others, named: load_named(paths, [*words, *others], named))


def parse_job(spec: str | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None) -> Job:
    """The job of YAML text or of a mapping. Raises SpecError with every problem."""
    text = spec if isinstance(spec, str) else json.dumps(spec, indent=2)
    words = override_words(overrides)
    return _job(lambda others, named: load_text(text, "job", [*words, *others, *named.overrides]))


def _job(load: Callable[[Sequence[str], TargetOptions], LoadedJob]) -> Job:
    loaded = load([], TargetOptions())
    return Job(loaded.job, loaded.text, load)


def _named(cluster: str | os.PathLike[str] | None, gpu: str | None) -> TargetOptions:
    return TargetOptions(None if cluster is None else os.fspath(cluster), gpu)


def _not_started(no_start: NoStart, reporter: Reporter) -> Run:
    reporter.say(no_start_sentence(no_start))
    return Run(no_start.found.run.path)
