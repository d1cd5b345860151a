"""The cluster and the GPU that a job is for, as the command line, the job itself or the cluster's profile names them:
what is wrong with those names is told beside what else is wrong with the job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestrator.cluster_profiles import read_profile, unknown_profile
from orchestrator.errors import Location, Problem, SpecError, UserError
from orchestrator.fields.refusals import Unavailable
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.hardware.devices import device_named
from orchestrator.profile_files import is_file_name, profile_file
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedDocument, LoadedJob, load_job

GPU_OPTION = "--gpu"
"""What chose the device where the command line names one."""


class TargetOptions(NamedTuple):
    """What the command line names, instead of the job."""

    cluster: str | None = None
    gpu: str | None = None

    @property
    def overrides(self) -> list[str]:
        """The same as `--set` takes it."""
        options = {"launch.cluster": self.cluster, "launch.gpu": self.gpu}
        return [f"{key}={value}" for key, value in options.items() if value is not None]


def load_named(files: Sequence[Path], overrides: Sequence[str], named: TargetOptions) -> LoadedJob:
    """Load a job with these names in it. Where it is wrong, SpecError says too what is wrong with the names, and what
    its cluster cannot give.
    """
    return load_job(files, [*overrides, *named.overrides], partial(known_part_problems, named))


def profile_of(job: JobSpec, named: TargetOptions) -> tuple[LoadedDocument[ClusterSpec] | None, list[Problem]]:
    """The profile of the cluster that is named, if one is; and what is wrong with its name, or with the profile."""
    name = named.cluster or job.launch.cluster
    if name is None:
        return None, []
    path = profile_file(name)
    if path is None:
        message, hint = unknown_profile(name)
        return None, [_wrong("cluster", named.cluster, message, hint)]
    try:
        return read_profile(path, found_by_name=not is_file_name(name)), []
    except SpecError as error:
        return None, error.problems


def gpu_problems(job: JobSpec, named: TargetOptions, profile: LoadedDocument[ClusterSpec] | None) -> list[Problem]:
    """What is wrong with the name of the GPU, if one is named, or with what was calibrated of it. Where neither the
    command line nor the job names one, the profile of the job's cluster does.
    """
    name = named.gpu or job.launch.gpu
    if name is None:
        return [] if profile is None or job.runtime.device == "cpu" else _gpu_problems_of(profile)
    try:
        device_named(name)
    except SpecError as error:
        return error.problems
    except UserError as error:
        return [_wrong("gpu", named.gpu, str(error))]
    return []


def _gpu_problems_of(profile: LoadedDocument[ClusterSpec]) -> list[Problem]:
    """The same for a profile: its `gpu` is one that is known, and its `gpu_type` any word that the cluster has."""
    gpu = profile.value.gpu
    name = gpu or profile.value.gpu_type
    try:
        if name is not None:
            device_named(name)
    except SpecError as error:
        return error.problems
    except UserError as error:
        return [profile.places.placed(Problem(str(error), ("gpu",), code="unknown_gpu"))] if gpu is not None else []
    return []


def _wrong(what: str, option: str | None, message: str, hint: str | None = None) -> Problem:
    """A problem with a name, at the option that says it, or else in the job."""
    place = Location(f"--{what} {option}") if option is not None else None
    paths = () if option is not None else (f"launch.{what}",)
    return Problem(message, paths, hint, place, f"unknown_{what}")


def known_part_problems(named: TargetOptions, job: JobSpec) -> list[Problem]:
    """What is wrong with the names of a job of which only part is known, and what its cluster cannot give that part."""
    found: list[Problem] = []
    profile = None
    with contextlib.suppress(Unavailable):
        profile, problems = profile_of(job, named)
        found += what_is_refused(job, profile.value) if profile is not None else problems
    with contextlib.suppress(Unavailable):
        found += gpu_problems(job, named, profile)
    return found
