"""What is to be measured on this machine, and alone: what `tune --measure` and `bench` check before they start."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.common import warn
from orchestrator.errors import UserError
from orchestrator.launch.runs import all_runs
from orchestrator.planning.hardware import DeviceChoice
from orchestrator.planning.hardware.local_gpus import gpus_counted
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.job import JobSpec


def check_gpus(job: JobSpec, choice: DeviceChoice, what: str, fewer: str, without: str = "") -> None:
    """Raises UserError where the job needs other machines, or more GPUs than are here.

    `what` measures; `fewer` is the way to another number of GPUs, for which {} stands; `without` the way to have
    nothing measured.
    """
    here = gpus_counted()
    if job.launch.nodes > 1:
        ways = [fewer.format("N"), without]
        raise UserError(
            f"{what} runs only on this machine, but the job has {job.launch.nodes}: {_either(ways)}",
            code="several_machines",
        )
    if choice.device.is_cpu or here is None or here >= job.world_size:
        return
    ways = [fewer.format(here)] if here else [without, "add --set runtime.device=cpu if a CPU can train it"]
    gpus = "a GPU" if job.world_size == 1 else f"{job.world_size} GPUs"
    raise UserError(f"{what} needs {gpus}, and this machine has {here or 'none'}: {_either(ways)}", code="too_few_gpus")


def _either(ways: Sequence[str]) -> str:
    return ", or ".join(filter(None, ways))


def check_alone(choice: DeviceChoice, runs_dir: Path, what: str) -> None:
    """Raises UserError where a run of this folder trains on this machine's GPUs: a job fills them to the brim, and
    what is measured beside another is wrong. One whose lease cannot be read, as another person's, is told of.
    """
    unread: dict[RunDir, OSError] = {}
    for run in [] if choice.device.is_cpu else all_runs(runs_dir):
        try:
            holder = read_holder(run)
        except OSError as error:
            unread[run] = error
            continue
        if holder is not None and holder.live and holder.process.host == socket.gethostname():
            raise UserError(
                f"{what} would disturb run {run.run_id}, which trains on this machine ({holder.describe()}): "
                f"wait for its end, or stop it with `orchestrator cancel {in_command(run)}`",
                code="machine_in_use",
            )
    if unread:
        run, trouble = next(iter(unread.items()))
        which = f"run {run.run_id}" if len(unread) == 1 else f"one of {len(unread)} runs (run {run.run_id}, …)"
        warn(
            f"it is not known whether {which} trains on this machine ({trouble.filename}: {trouble.strerror}): "
            f"if so, what {what} measures is wrong"
        )
