"""Data preparation on a cluster: a job without GPUs that makes what a run's blend lacks, before the run's own job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from os.path import abspath
from pathlib import Path

from orchestrator.data.chat.conversation_packing import loss_mask_prefix
from orchestrator.data.chat.stored_images import images_prefix
from orchestrator.data.indexed_dataset.header import bin_path, idx_path
from orchestrator.data.indexed_dataset.manifest import manifest_path
from orchestrator.data.source_survey import Source
from orchestrator.executors.slurm.batch_script import (
    container_command,
    container_options,
    output_pattern,
    python_on_nodes,
    setting,
    slurm_time,
)
from orchestrator.executors.slurm.client import job_states, submit
from orchestrator.launch.executor_protocol import Place, Warn
from orchestrator.launch.scripts.render import render_template
from orchestrator.launch.states.submitted_job import data_job
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import DataSubmitted
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.cluster import ClusterSpec, PartitionSpec
from orchestrator.spec.job import JobSpec

SHIPPED_TEMPLATE = "slurm-data.sbatch.j2"
MOST_CPUS = 16
"""With more, reading the text is what takes the time."""
_CPUS = 4
"""Where nobody says how many a node has."""
_OF_TRAINING = (
    *("--gpu", "--gres", "--tres", "--mem", "--nodes", "--ntasks", "--cpus", "--exclusive"),
    *("--constraint", "--switches", "--signal"),
)
"""How options of a profile begin that are about the nodes that train."""


def submit_preparation(
    run: RunDir,
    job: JobSpec,
    cluster: ClusterSpec,
    place: Place,
    missing: Sequence[Source],
    warn: Warn = lambda message: None,
) -> str:
    """Submit the job that makes what is missing; returns its id, or that of one that is under way. It works here; where
    `place`, where the training will, is a copy of the code, the data sets are linked into that.

    Raises UserError when SLURM refuses what is asked for and SchedulerError when it cannot be asked.
    """
    _link_into(place.working_directory, _prefixes(job, missing))
    if (under_way := _under_way(run)) is not None:
        return under_way
    run.logs.mkdir(exist_ok=True)
    here = replace(place, working_directory=Path.cwd())
    write_atomically(run.data_script, render_preparation(job, cluster, here, missing))
    job_id = submit(run.data_script, warn=warn)
    run.append(DataSubmitted(job_id=job_id, cluster=cluster.name))
    return job_id


def _prefixes(job: JobSpec, missing: Sequence[Source]) -> Iterator[Path]:
    """The data sets that are going to be made, and what is made beside them."""
    for prefix in (Path(source.entry.path) for source in missing):
        yield prefix
        if job.data.has_conversations:
            yield loss_mask_prefix(prefix)
        if job.model.has_vision:
            yield images_prefix(prefix)


def _link_into(folder: Path, prefixes: Iterable[Path]) -> None:
    """Let relative paths of data sets that are going to be made here lead here from a copy of the code."""
    for prefix in prefixes:
        for path in (idx_path(prefix), bin_path(prefix), manifest_path(prefix)):
            link = folder / path
            if link.parent.resolve() != path.parent.resolve():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(path.absolute())


def _under_way(run: RunDir) -> str | None:
    """The run's latest data job, when it waits or works still: its training job was refused, or withdrawn. One that has
    said that it failed is about to end.
    """
    events = run.events()
    submitted = [str(each.job_id) for each in events.all(DataSubmitted)]
    known = job_states([job_id for job_id in submitted[-1:] if not _has_failed(events, job_id)])
    return next((job_id for job_id, state in known.items() if not state.is_over), None)


def _has_failed(events: EventLog, job_id: str) -> bool:
    said = data_job(events, job_id)
    return said is not None and said.failure is not None


def render_preparation(job: JobSpec, cluster: ClusterSpec, place: Place, missing: Sequence[Source]) -> str:
    """The script of the data job: a function of its arguments and the template."""
    cpus = _cpus(_partition(job, cluster)[1])
    python = job.launch.python or cluster.python or place.python
    context = {
        "options": data_options(job, cluster, place.run, missing),
        **setting(job, cluster, place),
        "starter": _starter(cluster, place, cpus),
        "python": python_on_nodes(job, cluster, python),
        "workers": cpus,
    }
    return render_template(None, SHIPPED_TEMPLATE, context)


def data_options(job: JobSpec, cluster: ClusterSpec, run: RunDir, missing: Sequence[Source]) -> list[str]:
    """What the data job asks SLURM for. Its memory is what the cluster gives with the CPUs; what a profile says of the
    nodes that train (memory, features, whole nodes) is not asked for.
    """
    name, partition = _partition(job, cluster)
    time = cluster.time
    if time is not None and partition is not None and partition.time_limit is not None:
        time = min(time, partition.time_limit)
    wanted = {
        # Two jobs of one name run one after the other: where the file system has no locks, that keeps them apart.
        "job-name": f"data/{_identity(missing)}",
        "dependency": "singleton",
        "output": output_pattern(run.data_log),
        "open-mode": "append",
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": _cpus(partition),
        "time": slurm_time(time) if time else None,
        "partition": name,
        "account": job.launch.account or cluster.account,
        "qos": job.launch.qos or cluster.qos,
        "exclude": ",".join(cluster.exclude) or None,
    }
    asked = [f"--{name}={value}" for name, value in wanted.items() if value is not None]
    return [*asked, "--requeue", *(option for option in cluster.options if not option.startswith(_OF_TRAINING))]


def _partition(job: JobSpec, cluster: ClusterSpec) -> tuple[str | None, PartitionSpec | None]:
    name = cluster.data_partition or job.launch.partition or cluster.partition
    return name, cluster.partitions.get(name or "")


def _cpus(partition: PartitionSpec | None) -> int:
    known = partition.cpus_per_node if partition is not None else None
    return min(MOST_CPUS, known or _CPUS)


def _identity(missing: Sequence[Source]) -> str:
    prefixes = sorted(abspath(source.entry.path) for source in missing)
    return hashlib.sha256("\n".join(prefixes).encode()).hexdigest()[:8]


def _starter(cluster: ClusterSpec, place: Place, cpus: int) -> list[str]:
    """What stands before the program, where it runs in an image."""
    if options := container_options(cluster, place):
        return ["srun", "--ntasks=1", f"--cpus-per-task={cpus}", *options]
    return container_command(cluster, place)
