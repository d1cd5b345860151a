"""The batch script of a run on a SLURM cluster: a function of the job, the cluster's profile and where things lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.launch.executor_protocol import Place
from orchestrator.launch.scripts.render import render_template, script_environment
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

SHIPPED_TEMPLATE = "slurm.sbatch.j2"


def render_sbatch(
    job: JobSpec,
    cluster: ClusterSpec,
    place: Place,
    *,
    from_scratch: bool = False,
    after: tuple[str, ...] = (),
    module: str = RUNTIME_MODULE,
) -> str:
    """The script that sbatch gets. `after`: ids of jobs that must have succeeded before.

    Raises UserError for values that no batch script can carry, and when the template cannot be read or rendered.
    """
    python = job.launch.python or cluster.python or place.python
    context = {
        "options": sbatch_options(job, cluster, place.run, after),
        **setting(job, cluster, place),
        "python": python,
        "supervisor_options": supervisor_options(job, cluster, from_scratch),
        "nodes": job.launch.nodes,
        "processes_per_node": job.processes_per_node,
        "step_options": step_options(job, cluster, place),
        "container_command": container_command(cluster, place),
        "node_python": python_on_nodes(job, cluster, python),
        "module": module,
    }
    template = job.launch.slurm_template or cluster.template
    return render_template(Path(template) if template else None, SHIPPED_TEMPLATE, context)


def setting(job: JobSpec, cluster: ClusterSpec, place: Place) -> dict[str, Any]:
    """What every batch script of a run begins with: the environment it sets up, and where it works."""
    return {
        "modules": list(cluster.modules),
        "virtual_env": cluster.virtual_env,
        "setup": list(cluster.setup),
        "environment": job_environment(job, cluster, place),
        "working_directory": str(place.working_directory),
        "run_dir": str(place.run.path),
    }


def job_environment(job: JobSpec, cluster: ClusterSpec, place: Place) -> list[tuple[str, str]]:
    """Variables that a batch script exports, sorted."""
    environment = dict(script_environment(job, job.processes_per_node))
    for name, value in cluster.env.items():
        if name not in job.launch.env:
            environment[name] = value
    if place.python_path:
        asked = [environment["PYTHONPATH"]] if "PYTHONPATH" in environment else []
        environment["PYTHONPATH"] = os.pathsep.join([place.python_path, *asked])
    return sorted(environment.items())


def python_on_nodes(job: JobSpec, cluster: ClusterSpec, python: str) -> str:
    """The Python of the processes that srun starts: an image has its own, unless job or profile name one."""
    named = job.launch.python or cluster.python
    return named or ("python3" if cluster.container is not None else python)


def sbatch_options(job: JobSpec, cluster: ClusterSpec, run: RunDir, after: tuple[str, ...] = ()) -> list[str]:
    """What the job asks SLURM for, one option of sbatch each."""
    launch = job.launch
    gpus = gpu_request(job, cluster)
    kind = "none" if job.runtime.device == "cpu" else cluster.gpu_request
    time = launch.time or cluster.time
    cpus = cluster.cpus_per_gpu * job.processes_per_node if cluster.cpus_per_gpu else None
    wanted = {
        "job-name": f"{run.name}/{run.run_id}",
        "output": output_pattern(run.launcher_log),
        "open-mode": "append",
        "nodes": launch.nodes,
        "ntasks": launch.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cpus,
        "gres": f"gpu:{gpus}" if kind == "gres" else None,
        "gpus-per-node": gpus if kind == "gpus-per-node" else None,
        "mem": launch.memory_per_node or cluster.memory_per_node,
        "time": slurm_time(time) if time else None,
        "partition": launch.partition or cluster.partition,
        "account": launch.account or cluster.account,
        "qos": launch.qos or cluster.qos,
        "constraint": cluster.constraint,
        "exclude": ",".join(cluster.exclude) or None,
        "signal": f"B:USR1@{launch.stop_margin}",
        "dependency": f"afterok:{':'.join(after)}" if after else None,
    }
    options = [f"--{name}={value}" for name, value in wanted.items() if value is not None]
    flags = ["--requeue", *(["--exclusive"] if cluster.exclusive else [])]
    flags += ["--kill-on-invalid-dep=yes"] if after else []  # or it would wait for ever for what has failed
    return [*options, *flags, *cluster.options]


def supervisor_options(job: JobSpec, cluster: ClusterSpec, from_scratch: bool) -> list[str]:
    """Options of `orchestrator.batch`."""
    time = job.launch.time or cluster.time
    checks = job.launch.nodes > 1 if job.launch.health_check is None else job.launch.health_check
    return [
        *([f"--time-limit={time}"] if time else []),
        *(["--health-check"] if checks else []),
        *(["--from-scratch"] if from_scratch else []),
    ]


def gpu_request(job: JobSpec, cluster: ClusterSpec) -> str:
    """`4` or `h200:4`."""
    count = str(job.processes_per_node)
    return f"{cluster.gpu_type}:{count}" if cluster.gpu_type else count


def slurm_time(seconds: int) -> str:
    """A time limit as SLURM writes it: 1-02:30:00."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"


def output_pattern(path: Path) -> str:
    """A path as SLURM's file name pattern, in which % begins a replacement."""
    text = str(path)
    if "\\" in text or "\n" in text:
        raise UserError(
            f"{text!r}: SLURM cannot write to a path with a backslash or a line feed; choose another folder",
            code="path_not_for_slurm",
        )
    return text.replace("%", "%%")


def step_options(job: JobSpec, cluster: ClusterSpec, place: Place) -> list[str]:
    """Options of the step that the allocation's do not cover."""
    options = []
    if cluster.cpus_per_gpu:
        options.append(f"--cpus-per-task={cluster.cpus_per_gpu * job.processes_per_node}")
    return [*options, *container_options(cluster, place)]


def container_options(cluster: ClusterSpec, place: Place) -> list[str]:
    """Options of srun that start its processes in an image; empty where Pyxis is not used."""
    container = cluster.container
    if container is None or container.runtime != "pyxis":
        return []
    options = [f"--container-image={container.image}", f"--container-mounts={','.join(mounts(cluster, place))}"]
    return [*options, f"--container-workdir={place.working_directory}", *container.options]


def container_command(cluster: ClusterSpec, place: Place) -> list[str]:
    """What stands before the program where Apptainer starts it; empty elsewhere."""
    container = cluster.container
    if container is None or container.runtime != "apptainer":
        return []
    binds = [word for mount in mounts(cluster, place) for word in ("--bind", mount)]
    return ["apptainer", "exec", "--nv", *binds, *container.options, container.image]


def mounts(cluster: ClusterSpec, place: Place) -> list[str]:
    """HOST:CONTAINER of the run directory, the working directory and what the profile adds."""
    assert cluster.container is not None
    own = dict.fromkeys(str(path) for path in (place.run.path, place.working_directory))
    return [f"{path}:{path}" for path in own] + list(cluster.container.mounts)
