"""A cluster profile: what a SLURM cluster has, and how it spells what a job asks for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from orchestrator.spec.base import Section
from orchestrator.spec.values import Duration, Name, Positive, ReferringText, Size, Text, VariableName

ShellLine = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""Text that a shell runs as it is."""


class PartitionSpec(Section):
    """A partition and the most that a job may ask of it. What is not known is not checked."""

    nodes: Positive | None = None
    """Nodes it has."""
    gpus_per_node: Size | None = None
    """GPUs of its largest node."""
    cpus_per_node: Positive | None = None
    """CPUs of its largest node."""
    memory_per_node: Positive | None = None
    """Memory of its largest node, in MB."""
    time_limit: Duration | None = None
    """The longest a job may run."""


class ContainerSpec(Section):
    """A container image that the training processes run in."""

    runtime: Literal["pyxis", "apptainer"] = "pyxis"
    """pyxis: srun's own container options (enroot); apptainer: `apptainer exec`."""
    image: Text
    """The image: what srun's --container-image or apptainer takes."""
    mounts: list[Text] = Field(default_factory=list)
    """HOST:CONTAINER[:OPTIONS], besides the run directory and the working directory."""
    options: list[Text] = Field(default_factory=list)
    """Further options of srun (pyxis) or of `apptainer exec`."""


class ClusterSpec(Section):
    """How one SLURM cluster is used. Written by `orchestrator cluster init`, then by hand."""

    name: Name
    """What `launch.cluster` and `--cluster` call it."""
    partition: Text | None = None
    """Where jobs go that name no partition; the cluster's own default otherwise."""
    partitions: dict[Text, PartitionSpec] = Field(default_factory=dict)
    """What the partitions have; a job is checked against this before it is submitted."""
    account: Text | None = None
    """Account that is charged."""
    qos: Text | None = None
    """Quality of service."""
    gpu_request: Literal["gres", "gpus-per-node", "none"] = "gres"
    """How GPUs are asked for: --gres=gpu:N, --gpus-per-node=N, or not at all (nodes are given whole)."""
    gpu_type: Text | None = None
    """Type in the request: gpu:TYPE:N."""
    cpus_per_gpu: Positive | None = None
    """CPUs to ask for, per training process."""
    memory_per_node: Text | None = None
    """Memory to ask for, per node, as --mem takes it: 500G, or 0 for all of it."""
    time: Duration | None = None
    """Time limit of jobs that name none."""
    exclusive: bool = False
    """Ask for whole nodes."""
    exclude: list[Text] = Field(default_factory=list)
    """Nodes that are never used."""
    constraint: Text | None = None
    """Features that nodes must have."""
    data_partition: Text | None = None
    """Where data preparation runs, which needs no GPU; `partition` by default."""
    options: list[Text] = Field(default_factory=list)
    """Further options of sbatch, each as it is written there: `--mail-type=FAIL`."""
    modules: list[Text] = Field(default_factory=list)
    """Modules to load, in this order."""
    virtual_env: Text | None = None
    """Virtual environment to activate."""
    python: Text | None = None
    """Python on the nodes, when it is not the one that submits."""
    setup: list[ShellLine] = Field(default_factory=list)
    """Shell lines that run before the training starts on the first node, as they are."""
    env: dict[VariableName, ReferringText] = Field(default_factory=dict)
    """Environment of every process, NCCL's variables for example. `launch.env` goes over it."""
    template: Text | None = None
    """A template of your own for the batch script instead of the shipped one."""
    container: ContainerSpec | None = None
    """Image that the training processes run in."""
