"""What the past of a run says about starting it, and whether this machine can."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

from orchestrator.errors import MissingDependency, RunIsHeld, UserError
from orchestrator.fields.values import environment_references
from orchestrator.kernel_selection.libraries import require_libraries
from orchestrator.launch.hosts import hosts_of
from orchestrator.launch.scripts.render import refuse_missing_python, render
from orchestrator.planning.checks.preflight_checks import missing_train_step, unwritable_cache
from orchestrator.planning.hardware.local_gpus import gpus_counted
from orchestrator.planning.layout.elastic import node_counts
from orchestrator.quantities import timestamp
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.checkpoints.newest import begins_anew
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import CheckpointSaved
from orchestrator.run_directory.lease import held_message, read_holder, supersedes
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.job import JobSpec

_NEEDED = {"torch": "torch", "megatron.core": "megatron-core"}


def check_installed(job: JobSpec) -> None:
    """Raises MissingDependency when the Python that will train lacks what training needs."""
    check_conversion(job)
    if job.launch.python is None:
        require_libraries(job)


def check_conversion(job: JobSpec) -> None:
    """Raises MissingDependency when it lacks what reading and writing a job's checkpoints needs: no kernels."""
    if job.launch.python is not None:
        return  # another Python, which its own start will tell about
    missing = [package for module, package in _NEEDED.items() if not _is_installed(module)]
    if "megatron-core" in missing and sys.version_info >= (3, 14):
        raise MissingDependency(
            "training needs megatron-core, which has no wheels for Python 3.14: use Python 3.11, 3.12 or 3.13, for the "
            "ranks alone by launch.python",
            code="python_too_new",
        )
    if missing:
        raise MissingDependency(
            f"training needs {' and '.join(missing)}, which this Python lacks: "
            "pip install 'megatron-orchestrator[train]'"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_startable(run: RunDir, job: JobSpec, *, from_scratch: bool, launch_id: str | None = None) -> None:
    """Raises RunIsHeld when a live process works on the run, UserError when this machine cannot start it. `launch_id`:
    of a scheduler's start, which takes over from an earlier one of the same job.
    """
    holder = read_holder(run)
    if holder is not None and holder.live and not supersedes(launch_id or "", holder.launch_id):
        raise RunIsHeld(held_message(run, holder))
    refuse_imported(run)
    events = run.events()
    last = events.last_launch
    if last is not None and (last.exited is None or last.restarts):
        process = last.launched.process
        if process.is_alive and process.pid != os.getpid():
            since = timestamp(last.launched.time)
            raise RunIsHeld(
                f"run {run.run_id} is being started by pid {process.pid} on {process.host} since {since}.\n"
                f"      Follow it with `orchestrator logs {in_command(run)} -f`, or stop it with "
                f"`orchestrator cancel {in_command(run)}`."
            )
    refuse_without_checkpoint(run, from_scratch=from_scratch)
    refuse_missing(job)
    if job.launch.on_hosts:
        _refuse_hosts(job)
    else:
        refuse_missing_python(job)
        _refuse_other_machines(job)
    render(job, run_dir=run.path, python=sys.executable)  # a template of the job's own may be wrong


def _refuse_hosts(job: JobSpec) -> None:
    """Raises UserError where hosts cannot be started on from here, as far as this machine knows."""
    hosts_of(job.launch)
    node_counts(job)
    if shutil.which("ssh") is None:
        raise UserError(
            "launch.executor: ssh: there is no program ssh on this machine; install OpenSSH's client",
            code="missing_program",
        )
    if job.launch.copy_to is not None and shutil.which("rsync") is None:
        raise UserError(
            "launch.copy_to: there is no program rsync on this machine; install it here and on the host",
            code="missing_program",
        )


def _refuse_other_machines(job: JobSpec) -> None:
    """Raises UserError where a job of several machines is not started as the first of them."""
    if job.launch.nodes > 1 and not (os.environ.get("MASTER_ADDR") and os.environ.get("NODE_RANK") == "0"):
        raise UserError(
            f"this job runs on {job.launch.nodes} machines: start it on the first one, with MASTER_ADDR set to that "
            "machine's address and NODE_RANK to 0; it then prints what to start on the others. With launch.executor: "
            "ssh and launch.hosts it starts on all of them",
            code="several_machines",
        )


def refuse_missing(job: JobSpec) -> None:
    """Raises UserError for what the ranks would end over on this machine and can be looked at before they start.
    Another Python, or a template of the user's own, may find a module that is not found from here.
    """
    _refuse_unset_environment(job)
    _refuse_missing_gpus(job)
    looked_at = [unwritable_cache(job)]
    if job.launch.python is None and job.launch.template is None:
        looked_at.append(missing_train_step(job))
    problems = [problem for found in looked_at for problem in found]
    if problems:
        said = [f"{each.paths[0]}: {each.message}; {each.hint}" for each in problems]
        raise UserError("\n       ".join(said), code=problems[0].code)


def _refuse_missing_gpus(job: JobSpec) -> None:
    """Raises UserError where CUDA is asked for and this machine surely has no GPU; a template of the user's own may
    start the ranks elsewhere, and of what SLURM gave the ranks tell more: its GPU is broken.
    """
    if job.launch.on_hosts or "SLURM_GPUS_ON_NODE" in os.environ:
        return
    if job.runtime.device == "cuda" and job.launch.template is None and gpus_counted() == 0:
        raise UserError(
            "runtime.device is cuda, and this machine has no GPU; write auto or cpu to train on its CPU", code="no_gpu"
        )


def _refuse_unset_environment(job: JobSpec) -> None:
    """Raises UserError for what `launch.env` takes from the environment and is not there; a template of the user's own
    may set it in the launch script.
    """
    if job.launch.template is not None:
        return
    missing = [
        f"launch.env.{key}: ${{env:{name}}} is used here, but {name} is not set in the environment: export {name}=…"
        for key, value in job.launch.env.items()
        for name in environment_references(value)
        if name not in os.environ
    ]
    if missing:
        raise UserError("\n       ".join(missing), code="variable_not_set")


def refuse_imported(run: RunDir) -> None:
    """Raises UserError for a run that holds weights from elsewhere, and nothing to go on from."""
    if run.events().imported_from is not None:
        raise UserError(
            f"run {run.run_id} was imported: it holds weights and no optimizer, and cannot be resumed.\n"
            f"      Start another job from it, with checkpoint.pretrained: {run.path}",
            code="run_was_imported",
        )


def saved_nothing(run: RunDir, events: EventLog) -> bool:
    """Whether a run with these events was started and never saved anything: then it begins again, and nothing is lost
    by that. One that has saved must find what it saved.
    """
    return events.was_started and events.first(CheckpointSaved) is None and not committed(run)


def refuse_without_checkpoint(run: RunDir, *, from_scratch: bool) -> None:
    """Raises UserError when a start would end where its ranks look for a checkpoint: what is known is said before."""
    if not from_scratch and begins_anew(run, run.events()):
        raise UserError(
            f"run {run.run_id} was started before and has no checkpoint to continue from; nothing was started or "
            "changed.\n"
            "      To begin again at iteration 0, add --from-scratch.",
            code="no_checkpoint_to_resume",
        )
