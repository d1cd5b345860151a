"""Runs in sentences: how far one came, how it ended, and what can be done next."""

from __future__ import annotations

import shlex

from orchestrator.launch.run_names import shown_label
from orchestrator.launch.start_checks import begins_anew
from orchestrator.launch.states.run_states import RunStatus
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.tracking.follower import LOG_NAME
from orchestrator.tracking.mlflow.cursor import unsent_bytes

_LOSSES = (("train/loss", "loss"), ("validation/loss", "validation loss"))


def label(run: RunDir) -> str:
    """name/run_id, by the name that it was given."""
    return shown_label(run)


def reached(status: RunStatus) -> str:
    """How far a run came, for a sentence: the last iteration that was measured, if there was one."""
    return "before its first step" if status.iteration is None else f"at iteration {status.iteration}"


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


def completed_already(run: RunDir, status: RunStatus) -> str:
    """That there is nothing left to do, and what can be done."""
    key = length_key(load_resolved(run.resolved()))
    longer = f"orchestrator resume {in_command(run)} --set schedule.{key}=… --allow-changes"
    return (
        f"run {label(run)} has completed already, {reached(status)}; nothing was started.\n"
        f"      To train it again from the start as another run: {_again(run, status)}\n"
        f"      To train it for longer: {longer}"
    )


def on_its_way(status: RunStatus) -> str:
    """That the run needs no start now."""
    return (
        f"run {label(status.run)} is already under way ({status.describe()}); nothing was submitted.\n"
        f"      Follow it with `orchestrator logs {in_command(status.run)} -f`, or start another with --new."
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
