"""Starting a run from the command line and telling how it went: what `run`, `resume` and `drill` share."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import sys
import time
from typing import Annotated

import typer

from orchestrator.cli.common import print_json, stop_printing, warn
from orchestrator.cli.data_preparation import prepare_here
from orchestrator.errors import JobError, MissingDependency
from orchestrator.kernel_selection.libraries import require_libraries
from orchestrator.launch.local.launcher import Severity, Watcher, command_elsewhere, for_the_others
from orchestrator.launch.local.restarts import launch_with_restarts
from orchestrator.launch.scripts.render import RUNTIME_MODULE
from orchestrator.launch.start_checks import begins_anew, check_startable
from orchestrator.launch.states.run_states import RunStatus, last_iteration, status_of
from orchestrator.launch.watch import watcher_for
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.exits.classification import LogMarks
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.safe_path import module_command
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.tracking.follower import LOG_NAME
from orchestrator.tracking.mlflow.cursor import unsent_bytes

Detach = Annotated[bool, typer.Option("--detach", "-d", help="Start it in the background and return at once.")]
FromScratch = Annotated[
    bool, typer.Option("--from-scratch", help="Begin at iteration 0 although the run was started before.")
]

_NEEDED = {"torch": "torch", "megatron.core": "megatron-core"}
SECONDS_TO_START = 60.0
_SECONDS_TO_END = 45.0


def check_installed(job: JobSpec) -> None:
    """Raises MissingDependency when the Python that will train lacks what training needs."""
    if job.launch.python is not None:
        return  # another Python, which its own start will tell about
    missing = [package for module, package in _NEEDED.items() if not _is_installed(module)]
    if "megatron-core" in missing and sys.version_info >= (3, 14):
        raise MissingDependency(
            "training needs megatron-core, which has no wheels for Python 3.14: use Python 3.11, 3.12 or 3.13, for the "
            "ranks alone by launch.python"
        )
    if missing:
        raise MissingDependency(
            f"training needs {' and '.join(missing)}, which this Python lacks: "
            "pip install 'megatron-orchestrator[train]'"
        )
    require_libraries(job)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def start(run: RunDir, job: JobSpec, *, from_scratch: bool, detach: bool, as_json: bool) -> int:
    """Train in the foreground or the background; prints what happens and returns the command's exit code."""
    wait_for_previous(run, quiet=as_json)
    if code := prepare_here([str(run.path)], job, as_json):
        return code
    if detach:
        launch_id = start_in_background(run, job, from_scratch=from_scratch)
        if as_json:
            started = {"run_id": run.run_id, "name": run.name, "path": str(run.path), "launch_id": launch_id}
            elsewhere = {"command_elsewhere": command_elsewhere(run, launch_id)} if job.launch.nodes > 1 else {}
            print_json({**started, **elsewhere})
            return 0
        follow = f"orchestrator logs {in_command(run)} -f"
        typer.echo(f"started run {label(run)} in the background; follow it with: {follow}")
        if job.launch.nodes > 1:
            typer.echo(for_the_others(run, launch_id))
        return 0
    total = last_iteration(job, [] if from_scratch else committed(run))

    def watcher() -> Watcher:
        return _JsonWatcher() if as_json else watcher_for(run, total, sys.stdout)

    return report(run, job, total, launch_with_restarts(run, job, from_scratch=from_scratch, watcher=watcher), as_json)


class _JsonWatcher(Watcher):
    """Under --json: standard output is for the one object at the end, and the other machines are started before."""

    def say(self, message: str, severity: Severity | None = None) -> None:
        typer.echo(message, err=True)


def wait_for_previous(run: RunDir, *, quiet: bool) -> None:
    """Wait a little for the ranks of a launcher that was killed: they were told to save and stop."""
    last = run.events().last_launch
    if last is None or not last.launched.process.is_dead:
        return
    deadline = time.monotonic() + _SECONDS_TO_END
    said = quiet
    while time.monotonic() < deadline:
        holder = read_holder(run)
        if holder is None or not holder.live or not holder.process.is_here:
            return
        if not said:
            said = True
            typer.echo("the processes of the last start are still saving and stopping: waiting for them")
        time.sleep(0.2)


def start_in_background(run: RunDir, job: JobSpec, *, from_scratch: bool, module: str = RUNTIME_MODULE) -> str:
    """Start a launcher of its own session; returns the launch id. Raises JobError when it ends before it launched."""
    check_startable(run, job, from_scratch=from_scratch)
    run.logs.mkdir(exist_ok=True)
    marks = LogMarks.of(run)
    before = launch_id_of(run)
    options = ["--from-scratch"] if from_scratch else []
    with run.open_to_append(run.launcher_log) as log:
        pid = os.posix_spawn(
            sys.executable,
            module_command("orchestrator.launch", str(run.path), "--module", module, *options),
            os.environ,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            ],
        )
    deadline = time.monotonic() + SECONDS_TO_START
    try:
        while (launch_id := launch_id_of(run)) in (None, before):
            has_ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
            if has_ended or time.monotonic() > deadline:
                if not has_ended:
                    _give_up(pid)
                said = marks.tail(run, run.launcher_log).strip()
                raise JobError(f"run {run.run_id} could not be started in the background: {said or 'it said nothing'}")
            time.sleep(0.05)
    except KeyboardInterrupt:
        _give_up(pid)
        raise
    return str(launch_id)


def _give_up(launcher: int) -> None:
    """End a launcher that would launch a run that has been given up."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)


def launch_id_of(run: RunDir) -> str | None:
    last = run.events().last_launch
    return last.launch_id if last else None


def report(run: RunDir, job: JobSpec, total: int, end: Exit, as_json: bool) -> int:
    """Tell how a launch ended, if anybody still listens; returns the exit code."""
    status = status_of(run)
    iteration = end.iteration if end.iteration is not None else status.iteration
    try:
        if as_json:
            print_json({**status.to_json(), "train_iters": total, "exit_code": end.code})
        else:
            typer.echo(ending(run, total, end, iteration, status), err=end.code != 0)
            # Another end leaves its metrics to a process that goes on sending them for a while.
            if end.cause in ("completed", "stopped") and (unsent := bytes_unsent(run, job)):
                warn(f"not sent: {unsent_words(run, unsent)}")
    except OSError:
        stop_printing()
    return end.code


def ending(run: RunDir, total: int, end: Exit, iteration: int | None, status: RunStatus) -> str:
    """How a launch ended, for a person: what, where, and what to do next."""
    cause = cause_of(end.cause)
    where = f" at iteration {iteration} of {total}" if iteration is not None else ""
    if end.cause == "completed":
        losses = [f"{name} {status.values[key]:.4f}" for key, name in _LOSSES if key in status.values]
        return f"run {label(run)} completed{where}" + (f": {', '.join(losses)}" if losses else "")
    if end.cause == "stopped":
        first = f"run {label(run)} stopped{where}, saved"
    elif end.cause == "cancelled":
        first = f"run {label(run)} was cancelled{where}" + (f": {end.message}" if end.message else "")
    else:
        first = f"error: run {label(run)} ended{where}: {cause.sentence}" + (f": {end.message}" if end.message else "")
    advice = cause.advise(in_command(run), anew=begins_anew(run, status.events))
    return f"{first}\n      {advice}" if advice else first


def bytes_unsent(run: RunDir, job: JobSpec) -> int:
    """How much of what was measured MLflow lacks; nothing, where the job is not sent there."""
    return unsent_bytes(run) if job.tracking.mlflow else 0


def unsent_words(run: RunDir, unsent: int) -> str:
    """What was not sent, where it says why, and what sends it."""
    log, again = run.logs / LOG_NAME, f"orchestrator sync {in_command(run)}"
    return f"{unsent:,} bytes of metrics to MLflow: {log} says why, {again} sends them"


def reached(status: RunStatus) -> str:
    """How far a run came, for a sentence: the last iteration that was measured, if there was one."""
    return "before its first step" if status.iteration is None else f"at iteration {status.iteration}"


def label(run: RunDir) -> str:
    """name/run_id."""
    return f"{run.name}/{run.run_id}"


def describe_completed(run: RunDir, status: RunStatus, as_json: bool) -> None:
    """Say that there is nothing left to do."""
    if as_json:
        print_json(status.to_json())
    else:
        key = length_key(load_resolved(run.resolved()))
        longer = f"orchestrator resume {in_command(run)} --set schedule.{key}=… --allow-changes"
        typer.echo(
            f"run {label(run)} has completed already, {reached(status)}; nothing was started.\n"
            f"      To train it again from the start as another run: {_again(run, status)}\n"
            f"      To train it for longer: {longer}"
        )


def length_key(job: JobSpec) -> str:
    """The one of the three lengths that a spec has; another beside it would be refused."""
    schedule = job.schedule
    if schedule.train_tokens is not None:
        return "train_tokens"
    return "train_samples" if schedule.train_samples is not None else "train_iters"


def _again(run: RunDir, status: RunStatus) -> str:
    """The command that trains the run's spec again, as the run has it now."""
    spec, folder = (shlex.quote(str(path)) for path in (run.resolved(), run.path.parent.parent))
    return f"orchestrator {'run' if status.job is None else 'submit'} {spec} --new --runs-dir {folder}"


_LOSSES = (("train/loss", "loss"), ("validation/loss", "validation loss"))
