"""Jobs, loaded and checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.api.planned_job import PlannedJob, judge_named
from orchestrator.api.targets import TargetOptions, load_named
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, load_text


@dataclass(frozen=True)
class Job:
    """A job whose spec is right. `spec` has its sections, frozen, with every default filled in."""

    spec: JobSpec
    text: str
    """What was written."""
    _load: Callable[[TargetOptions], LoadedJob] = field(repr=False)

    @property
    def name(self) -> str:
        """That of its runs."""
        return self.spec.name

    def plan(self, *, cluster: str | os.PathLike[str] | None = None, gpu: str | None = None) -> PlannedJob:
        """What it will do and take, and the verdict, as `orchestrator plan` tells it. `cluster` (the name of a profile,
        or its file) and `gpu` (`"H100"`) stand in place of those that the job names.

        Raises SpecError where the job cannot be planned, or not for these.
        """
        named = TargetOptions(None if cluster is None else os.fspath(cluster), gpu)
        return judge_named(self._load(named), named)


def load_job(*files: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Job:
    """The job of YAML files, of which a later one goes over those before. `overrides`, which go over all, are values by
    their keys: `{"optimizer.lr": 1e-4}`.

    Raises SpecError with every problem, and UserError where a file cannot be read.
    """
    return _job(partial(load_named, [Path(file) for file in files], _words(overrides)))


def parse_job(spec: str | Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None) -> Job:
    """The job of YAML text or of a mapping. Raises SpecError with every problem."""
    text = spec if isinstance(spec, str) else json.dumps(spec, indent=2)
    words = _words(overrides)
    return _job(lambda named: load_text(text, "job", [*words, *named.overrides]))


def _job(load: Callable[[TargetOptions], LoadedJob]) -> Job:
    loaded = load(TargetOptions())
    return Job(loaded.job, loaded.text, load)


def _words(overrides: Mapping[str, Any] | None) -> list[str]:
    """As `--set` takes them: JSON is YAML."""
    return [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
