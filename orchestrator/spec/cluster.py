"""A cluster profile: what a SLURM cluster has, and how it spells what a job asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from orchestrator.errors import Problem, SpecError
from orchestrator.fields.base import Section
from orchestrator.fields.refusals import Unavailable
from orchestrator.fields.values import (
    After,
    Duration,
    Memory,
    Name,
    Positive,
    ShellLine,
    Size,
    Text,
    VariableName,
    Word,
    empty_dict,
    empty_list,
)
from orchestrator.spec.messages.suggestions import closest
from orchestrator.spec.sections.runtime import Layers


def _check_option(text: str) -> str:
    if not text.startswith("--") or text == "--" or text.partition("=")[0].split() != [text.partition("=")[0]]:
        raise ValueError("an option of sbatch is written --NAME or --NAME=VALUE")
    if "\n" in text:
        raise ValueError("an option of sbatch is one line")
    return text


SbatchOption = Annotated[Text, After(_check_option)]
"""`--mail-type=FAIL`, as one word."""


def check_login(text: str) -> str:
    """A login node as `ssh` takes it. Raises ValueError."""
    if text.startswith("-") or text.split() != [text] or ":" in text or "/" in text:
        raise ValueError("a login node is written HOST or USER@HOST; a port goes into ~/.ssh/config")
    return text


Login = Annotated[Text, After(check_login)]
"""`me@login.example.org`, as `ssh` takes it."""


class ProfileSection(Section):
    """A part of a profile. Most commands need none, so its validator is built when it is first used."""

    model_config = ConfigDict(defer_build=True)


class PartitionSpec(ProfileSection):
    """A partition and the most that a job may ask of it. What is not known is not checked."""

    nodes: Positive | None = None
    """Nodes that one job may have."""
    gpus_per_node: Size | None = None
    """GPUs of its largest node."""
    cpus_per_node: Positive | None = None
    """CPUs of its largest node."""
    memory_per_node: Positive | None = None
    """Memory of its largest node, in MB."""
    time_limit: Duration | None = None
    """The longest a job may run."""


class ContainerSpec(ProfileSection):
    """A container image that the training processes run in."""

    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """pyxis: srun's own container options (enroot); apptainer: `apptainer exec`."""
    image: Text
    """The image: what srun's --container-image or apptainer takes."""
    mounts: list[Text] = Field(default_factory=empty_list)
    """HOST:CONTAINER[:OPTIONS], besides the run directory and the working directory."""
    options: list[Text] = Field(default_factory=empty_list)
    """Further options of srun (pyxis) or of `apptainer exec`."""


class ClusterSpec(ProfileSection):
    """How one SLURM cluster is used. Written by `orchestrator cluster init`, then by hand."""

    name: Name
    """Name for `launch.cluster` and `--cluster`; the name of its file."""
    login: Login | None = None
    """Login node, reached with `ssh` from a machine outside the cluster: `me@login.example.org`, or a name from
    ~/.ssh/config. Commands for this cluster then run there."""
    login_folder: Text | None = None
    """Folder of the project on the login node, with its data and runs: `~/orchestrator/NAME` by default, with the name
    of the project's folder here."""
    partition: Word | None = None
    """Partition of jobs that name none; the cluster's own default otherwise."""
    partitions: dict[Word, PartitionSpec] = Field(default_factory=empty_dict)
    """Resources of the partitions; a job is checked against them before it is submitted."""
    account: Word | None = None
    """Account that is charged."""
    qos: Word | None = None
    """Quality of service."""
    gpu_request: Literal["gres", "gpus-per-node", "none"] = "gres"
    """How GPUs are requested: --gres=gpu:N, --gpus-per-node=N, or not at all (nodes are allocated whole)."""
    gpu_type: Word | None = None
    """Type in the request: gpu:TYPE:N."""
    gpu: Text | None = None
    """Its GPUs, for planning memory and time: H100, H200, or a calibrated one; `gpu_type` by default."""
    layers: Layers | None = None
    """Layers that the environment of its jobs has, for plans with `runtime.layers: auto`; by default those of the GPU's
    profile, or else transformer_engine."""
    cpus_per_gpu: Positive | None = None
    """CPUs to request per training process."""
    memory_per_node: Memory | None = None
    """Memory to request per node, in --mem's format: 500G, or 0 for all of it."""
    time: Duration | None = None
    """Time limit of jobs without their own."""
    exclusive: bool = False
    """Request whole nodes."""
    exclude: list[Word] = Field(default_factory=empty_list)
    """Nodes that are never used, each a name or a list in SLURM's notation: `gpu[001-003]`."""
    constraint: Word | None = None
    """Features that nodes must have."""
    data_partition: Word | None = None
    """Partition for data preparation, which needs no GPU; `partition` by default."""
    options: list[SbatchOption] = Field(default_factory=empty_list)
    """Further options of sbatch, written as for sbatch: `--mail-type=FAIL`."""
    modules: list[Word] = Field(default_factory=empty_list)
    """Modules to load, in this order."""
    virtual_env: Text | None = None
    """Virtual environment to activate."""
    python: Text | None = None
    """Python on the nodes, if it is not the one that submits."""
    setup: list[ShellLine] = Field(default_factory=empty_list)
    """Shell lines that run unchanged on the first node before the training starts."""
    template: Text | None = None
    """Custom template for the batch script, instead of the shipped one."""
    env: dict[VariableName, Text] = Field(default_factory=empty_dict)
    """Environment of every process, for example NCCL's variables. `launch.env` overrides it."""
    container: ContainerSpec | None = None
    """Image that the training processes run in."""

    @model_validator(mode="after")
    def _check(self) -> ClusterSpec:
        problems = check_cluster(self)
        if problems:
            raise SpecError(problems=problems)
        return self


def check_cluster(cluster: ClusterSpec) -> list[Problem]:
    """What is wrong between the fields of a profile, or of the known part of one."""
    problems: list[Problem] = []
    for rule in (_partition_is_listed, _data_partition_is_listed, _type_is_asked_for):
        try:
            problems += rule(cluster)
        except Unavailable:
            continue
    return problems


def _partition_is_listed(cluster: ClusterSpec) -> Iterator[Problem]:
    yield from _unlisted("partition", cluster.partition, list(cluster.partitions))


def _data_partition_is_listed(cluster: ClusterSpec) -> Iterator[Problem]:
    yield from _unlisted("data_partition", cluster.data_partition, list(cluster.partitions))


def _unlisted(field: str, value: str | None, listed: list[str]) -> Iterator[Problem]:
    """SLURM takes several partitions, separated by commas, and picks one."""
    for name in value.split(",") if value is not None and listed else ():
        if name not in listed:
            near = closest(name, listed)
            hint = f"did you mean {' or '.join(near)}?" if near else f"partitions: {', '.join(listed)}"
            message = f"there is no partition {name} in partitions"
            yield Problem(message, (field, "partitions"), hint, code="unknown_partition")


def _type_is_asked_for(cluster: ClusterSpec) -> Iterator[Problem]:
    if cluster.gpu_type is not None and cluster.gpu_request == "none":
        message = "a type of GPU is asked for together with their number, and gpu_request is none"
        hint = "leave it out, or write gpu_request: gres"
        yield Problem(message, ("gpu_type", "gpu_request"), hint, code="gpu_type_without_request")
