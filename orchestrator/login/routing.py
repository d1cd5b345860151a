"""Which commands run on a login node: those on a cluster whose profile has a `login`, and on the runs that are there.

Where runs are is said by `--runs-dir CLUSTER:DIR` or by $ORCHESTRATOR_RUNS_DIR. Where nobody says it, they are on the
only cluster that has a login node, but for a run that is found here by its name.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.cluster_profiles import find_profile, read_profile
from orchestrator.errors import OrchestratorError, UserError
from orchestrator.http.listening import TOKEN_VARIABLE, is_loopback, listen
from orchestrator.launch.code.repository_files import repository_of
from orchestrator.launch.executor_protocol import executor_of, is_started_here
from orchestrator.launch.runs import find_run
from orchestrator.login.archives import project_of
from orchestrator.login.command import Command, Word
from orchestrator.profile_files import PROJECT_FOLDER, is_file_name, known_profiles, may_name_login_node, profile_file
from orchestrator.run_directory.rundir import DEFAULT_RUNS_DIR, RUNS_DIR_VARIABLE
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job
from orchestrator.sweeps.ledger import find_sweep
from orchestrator.sweeps.loading import load_sweep

STARTS = ("submit", "sweep run")
"""On the cluster that the job is for."""
GOES_ON = ("resume", "sweep retry", "sweep continue")
"""Where the run is, with the code that is here."""
CHANGES = ("cancel", "sweep cancel", "sync", "notify", "tag", "note", "rename", "archive", "delete", "prune")
SHOWS = (
    *("list", "status", "logs", "compare", "dashboard", "sweep status", "sweep results", "sweep list"),
    *("checkpoint list", "checkpoint verify"),
)
_OF_RUNS_DIR = ("--runs-dir", "--runs")


class _Place(NamedTuple):
    """A folder of runs on a cluster."""

    profile: Path
    cluster: ClusterSpec
    runs_dir: str | None


def command_there(name: str, arguments: Sequence[str], values: Mapping[str, Any]) -> Command | None:
    """The command for a login node; None where it runs here. `values`: what `arguments` say, by parameter.

    Raises UserError for a cluster that cannot be told or that the command does not run on, and SpecError for a profile
    that is wrong.
    """
    if name in STARTS:
        return None if values.get("local") else _start(arguments, values)
    if name not in (*GOES_ON, *CHANGES, *SHOWS):
        if "runs_dir" in values and (place := _place_that_is_named(values)) is not None:
            raise UserError(
                f"the runs are on {place.cluster.name}, but orchestrator {name} does not run on a login node: "
                "log in there for it, or name a folder of this machine with --runs-dir",
                code="command_not_on_login_node",
            )
        return None
    place = _place_of_runs(values)
    if place is None or values.get("local"):
        return None
    if name == "dashboard":
        return _dashboard(place, values)
    return _command(place, arguments, values, sends_project=name in GOES_ON, only_shows=name in SHOWS)


def _start(arguments: Sequence[str], values: Mapping[str, Any]) -> Command | None:
    """A submission to a cluster with a login node. Of a job that is wrong nothing is known: it is refused here."""
    try:
        job = _job(values)
        if is_started_here(job) or not executor_of(job).has_clusters:
            return None
    except OrchestratorError:
        return None
    name = values.get("cluster") or job.launch.cluster or _only(known_profiles())
    path = profile_file(name) if name is not None else None
    if path is None:
        return None
    cluster = read_profile(path, found_by_name=not is_file_name(str(name))).value
    if cluster.login is None:
        return None
    own = job.launch.runs_dir if "runs_dir" in job.launch.model_fields_set else None
    return _command(_Place(path, cluster, own), arguments, values, sends_project=True)


def _job(values: Mapping[str, Any]) -> JobSpec:
    """The job that is started, or the first cell of a sweep."""
    overrides, arrays = list(values.get("overrides") or ()), tuple(values.get("array") or ())
    files = values.get("jobs") or values.get("files") or []
    if "files" not in values and not arrays:
        return load_job(files, overrides).job
    cells = load_sweep(files, overrides, arrays=arrays).cells.cells
    if not cells:
        raise UserError("no cell", code="no_cell")
    return cells[0].job


def _place_that_is_named(values: Mapping[str, Any]) -> _Place | None:
    """The folder of runs on a cluster that --runs-dir or its variable names; None for one that is here."""
    given = str(values.get("runs_dir") or os.environ.get(RUNS_DIR_VARIABLE) or "")
    name, is_there, folder = given.partition(":")
    if not is_there or (name not in known_profiles() and Path(given).exists()):
        return None
    path = find_profile(name)
    cluster = read_profile(path).value
    if cluster.login is None:
        raise UserError(
            f"--runs-dir {given}: {path} has no login node: add `login: USER@HOST` to it",
            code="profile_without_login_node",
        )
    return _Place(path, cluster, folder or None)


def _place_of_runs(values: Mapping[str, Any]) -> _Place | None:
    """Where the runs are that a command is about; None where they are here."""
    if values.get("runs_dir") or os.environ.get(RUNS_DIR_VARIABLE):
        return _place_that_is_named(values)
    with_login = {}
    for name, path in known_profiles().items():
        if may_name_login_node(path) and (cluster := read_profile(path).value).login is not None:
            with_login[name] = _Place(path, cluster, None)
    only = _only(with_login)
    return None if only is None or _is_here(values) else with_login[only]


def _only(names: Mapping[str, Any]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _is_here(values: Mapping[str, Any]) -> bool:
    """Whether all runs and sweeps that a command names are found here."""
    single = values.get("run_name") or values.get("which")
    runs = [single] if isinstance(single, str) else [*(values.get("names") or ()), *(values.get("run_names") or ())]
    sweep = values.get("name") if "run_name" not in values else None
    if not runs and sweep is None:
        return False
    folder = Path(DEFAULT_RUNS_DIR)
    try:
        for run in runs:
            if not Path(run).exists():  # as a checkpoint is named
                find_run(run, folder)
        if sweep is not None:
            find_sweep(sweep, folder)
    except OrchestratorError:
        return False
    return True


def _dashboard(place: _Place, values: Mapping[str, Any]) -> Command:
    """The dashboard listens on the login node's own address, which its other users reach as well: it has a token."""
    if values["allow_host"] or not is_loopback(str(values["host"])):
        raise UserError(
            f"the dashboard of {place.cluster.name} is for this machine alone: leave out --host and --allow-host, "
            "or start it on the login node",
            code="dashboard_for_this_machine",
        )
    with listen("127.0.0.1", int(values["port"])) as listening:
        port = listening.getsockname()[1]
    words = ["dashboard", "--port", "0", "--json", *(["--allow-actions"] if values.get("allow_actions") else [])]
    command = _command(place, words, {}, only_shows=True)
    token = values.get("token") or secrets.token_urlsafe(24)
    return replace(command, port=port, variables={TOKEN_VARIABLE: token}, prints_json=bool(values["as_json"]))


def _command(
    place: _Place,
    arguments: Sequence[str],
    values: Mapping[str, Any],
    *,
    sends_project: bool = False,
    only_shows: bool = False,
) -> Command:
    """The command with the paths that it has there, and the project if it starts something."""
    here = Path.cwd().resolve()
    root = repository_of(here) or here
    folder = place.cluster.login_folder or f"~/orchestrator/{root.name}"
    runs_dir = place.runs_dir
    if values.get("runs_dir") is not None:
        runs_dir = str(values["runs_dir"]).rpartition(":")[2] or None
    words: list[Word] = list(_without_runs_dir(arguments))
    project = None
    if sends_project:
        sent = {}
        if not is_file_name(str(values.get("cluster") or "")):
            sent[str(Path("tree", here.relative_to(root), PROJECT_FOLDER, place.profile.name))] = place.profile
        files = [Path(each) for each in (*(values.get("jobs") or ()), *(values.get("files") or ()))]
        if is_file_name(str(values.get("cluster") or "")):
            files.append(Path(values["cluster"]))
        for number, word in enumerate(words):
            if not isinstance(word, str) or Path(word) not in files or not Path(word).is_file():
                continue
            path = Path(word).resolve()
            name = f"tree/{path.relative_to(root)}" if path.is_relative_to(root) else f"outside/{number}-{path.name}"
            sent[name] = path
            if Path(word).is_absolute() or not path.is_relative_to(root):
                words[number] = ("project", name)
        project = project_of(here, Path(DEFAULT_RUNS_DIR), sent)
    return Command(place.cluster, tuple(words), folder, project, runs_dir or DEFAULT_RUNS_DIR, only_shows=only_shows)


def _without_runs_dir(arguments: Sequence[str]) -> list[str]:
    """A command line without the option for the folder of runs: it is said by a variable there."""
    words, is_value = [], False
    for word in arguments:
        if is_value:
            is_value = False
        elif word in _OF_RUNS_DIR:
            is_value = True
        elif word.partition("=")[0] not in _OF_RUNS_DIR:
            words.append(word)
    return words
