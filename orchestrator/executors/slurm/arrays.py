"""The cells of a sweep as arrays of SLURM: what is asked for, and the program that submits them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from orchestrator import errors
from orchestrator.errors import JobError, UserError
from orchestrator.executors.slurm.batch_script import render_sbatch, sbatch_options
from orchestrator.launch.code.snapshot import place_of
from orchestrator.launch.executor_protocol import Place
from orchestrator.launch.scripts.render import render_template, shell_quote
from orchestrator.launch.start_checks import saved_nothing
from orchestrator.run_directory.rundir import write_atomically
from orchestrator.safe_path import module_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.request import Array, Request, Task
from orchestrator.sweeps.submission import SweepStart

_OF_THE_ARRAY = ("job-name", "output", "error", "open-mode", "signal", "dependency", "array", "time")
"""Options that submitit writes itself."""


def cluster_request(asked: SweepStart) -> Request:
    """The cells as arrays on a cluster: one for all that ask SLURM for the same. Writes each cell's batch script into
    its run directory, unless this is a dry run.

    Raises UserError for what no batch script can carry.
    """
    sweep, cluster = asked.sweep, asked.cluster
    assert cluster is not None, "without a name it is the only one there is"
    arrays: dict[str, Array] = {}
    made = len(sweep.submissions_made())
    places: dict[bool, Place] = {}  # one copy of the code serves all the cells that want one
    for start in asked.starts:
        if start.job.launch.snapshot not in places:
            places[start.job.launch.snapshot] = place_of(start.run, start.job, copy=not asked.dry_run)
        place = replace(places[start.job.launch.snapshot], run=start.run)
        scratch = not asked.dry_run and saved_nothing(start.run, start.run.events())
        script = render_sbatch(start.job, cluster, place, from_scratch=scratch, module=asked.module)
        if not asked.dry_run:
            start.run.logs.mkdir(exist_ok=True)
            write_atomically(start.run.batch_script, script)
            start.run.stop_file.unlink(missing_ok=True)
        parameters = array_parameters(sweep, start.job, cluster, place)
        array = arrays.setdefault(json.dumps(parameters, sort_keys=True), Array(parameters, []))
        command = ["bash", str(start.run.batch_script)]
        cancels = sweep.cancels(start.id)
        task = Task(start.id, start.name, str(start.run.path), command, 0, cancels, made)
        array.tasks.append(replace(task, stop_at=start.stop_at, of_search=start.of_search))
    return Request(
        sweep_dir=str(sweep.path),
        arrays=list(arrays.values()),
        max_parallel=asked.max_parallel,
        cluster=cluster.name,
        python=shell_quote(cluster.python or sys.executable),
        max_requeues=max((start.job.launch.max_requeues for start in asked.starts), default=0),
        dry_run=asked.dry_run,
    )


def array_parameters(sweep: SweepDir, job: JobSpec, cluster: ClusterSpec, place: Place) -> dict[str, Any]:
    """What a cell asks SLURM for, as parameters of submitit's SlurmExecutor: the options that `submit` would write."""
    if "%" in str(sweep.path):
        raise UserError(f"{sweep.path}: submitit cannot work in a folder with a % in its name", code="percent_in_path")
    asked = dict(_option(option) for option in sbatch_options(job, cluster, place.run))
    time = _time_limit(job, cluster)
    setup = {
        "modules": list(cluster.modules),
        "virtual_env": cluster.virtual_env,
        "setup": list(cluster.setup),
        "signal": "USR1",
        "python_path": place.python_path,
        "working_directory": str(place.working_directory),
    }
    return {
        "job_name": f"sweep/{sweep.name}",
        "time": math.ceil(time / 60),
        "signal_delay_s": job.launch.stop_margin,
        "setup": render_template(None, "sweep-setup.sh.j2", setup).splitlines(),
        "additional_parameters": {
            **{name: value for name, value in asked.items() if name not in _OF_THE_ARRAY},
            "signal": asked["signal"],
        },
    }


def _option(text: str) -> tuple[str, str | bool]:
    """`--gres=gpu:4` as (gres, gpu:4), `--requeue` as (requeue, True)."""
    name, given, value = text.removeprefix("--").partition("=")
    return name, value if given else True


def _time_limit(job: JobSpec, cluster: ClusterSpec) -> int:
    """Seconds. Raises UserError where nobody says: submitit tells a time-out from a preemption by it."""
    partition = cluster.partitions.get(job.launch.partition or cluster.partition or "")
    time = job.launch.time or cluster.time or (partition.time_limit if partition is not None else None)
    if time is None:
        raise UserError(
            "the cells of a sweep need a time limit: set launch.time, or `time` in the cluster's profile",
            code="no_time_limit",
        )
    return time


def submit(request: Request) -> list[dict[str, Any]]:
    """Hand arrays to SLURM; what the program answered. Raises what it could not do."""
    done = subprocess.run(
        module_command("orchestrator.executors.slurm.array_program"),
        input=request.to_json(),
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    answers = list(_answers(done.stdout))
    for answer in answers:
        if "error" in answer:
            kind = getattr(errors, str(answer["error"]), JobError)
            raise kind(str(answer["message"]), code=answer["code"])
    if done.returncode != 0:
        raise JobError(
            f"the cells could not be submitted: {done.stderr.strip()[-2000:] or 'no reason was given'}",
            code="failed_submission",
        )
    return answers


def _answers(text: str) -> Iterable[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _environment() -> dict[str, str]:
    """Without what a job tells about itself, which sbatch would hand on to other jobs."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER")
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in kept}
