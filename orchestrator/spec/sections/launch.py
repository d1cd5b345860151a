"""Where a job runs, and what happens when it ends before it is done."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import (
    Duration,
    Host,
    Memory,
    Positive,
    ReferringText,
    Size,
    Text,
    VariableName,
    Word,
    empty_dict,
    empty_list,
)

RELAUNCHED = resume.safe("where a job runs does not touch training; losses agree, not bitwise")
FailureCause = Literal[
    "time_limit",
    "preempted",
    "node_fail",
    "out_of_memory",
    "host_out_of_memory",
    "nan",
    "hang",
    "nccl_error",
    "gpu_error",
    "killed",
    "lost",
    "checkpoint",
    "disk_full",
    "bug",
]
GROUPED_PRODUCTS = "NVTE_USE_CUTLASS_GROUPED_GEMM"
"""By which Transformer Engine (2.9 and later) is told to multiply all experts of a rank in one kernel, forward and for
the gradients of tokens, on a Hopper GPU and in 16 bits. By itself it calls cuBLAS for each expert, whose search for an
algorithm takes the host about 0.1 ms (docs/benchmarks/results.md).
"""
Action = Literal["requeue", "requeue_elsewhere", "stop"]


ON_HOSTS = "ssh"
"""The executor of jobs that the launcher starts on other machines."""


class LaunchSpec(Section):
    """Where the job runs, and what happens if it ends before it is done. On the CPU, a 'GPU' is a process."""

    nodes: Annotated[Positive, AlsoCalled("num_nodes nnodes num_machines num_processes world_size")] = 1
    """Machines."""
    gpus_per_node: Annotated[
        Positive | None,
        AlsoCalled("devices gpus num_gpus num_gpus_per_node nproc_per_node ntasks_per_node num_processes world_size"),
    ] = None
    """Processes per machine; TP · PP · CP · DP / nodes by default."""
    gpu: Text | None = None
    """The GPU that memory and time are planned for: H100, H200, or a calibrated one; by default the profile's, or this
    machine's."""
    runs_dir: Annotated[Text, AlsoCalled("output_dir save_dir")] = "runs"
    """Folder of run directories, relative to the directory where the command is started."""
    env: Annotated[
        dict[VariableName, ReferringText],
        resume.unless_experts_change_format(RELAUNCHED),
        AlsoCalled("env_vars environment"),
    ] = Field(default_factory=empty_dict)
    """Environment of every process. Values may contain ${env:NAME}."""
    python: Text | None = None
    """Python of the training processes; the one that runs the command by default."""
    template: Text | None = None
    """Custom template for the torchrun script, instead of the shipped one."""
    slurm_template: Text | None = None
    """Custom template for the batch script; the profile's by default. It may extend the shipped one."""
    executor: Annotated[Word | None, HashedIfChanged()] = None
    """ssh: `run` starts the job on `hosts`. Others are used by `submit`: slurm, which is the default, or one from an
    installed package."""
    hosts: Annotated[list[Host], HashedIfChanged()] = Field(default_factory=empty_list)
    """Machines for `executor: ssh`, as `ssh` knows them; `node[1-4]` is a list. Those beyond `nodes` replace machines
    that fail."""
    hosts_file: Annotated[Text | None, HashedIfChanged()] = None
    """A file with such machines, one on each line."""
    min_nodes: Annotated[Positive | None, HashedIfChanged()] = None
    """With `executor: ssh`: where fewer machines than `nodes` can start, go on with this many at least, with fewer
    replicas and the same global batch; `nodes` by default."""
    copy_to: Annotated[Word | None, HashedIfChanged()] = None
    """With `executor: ssh` and one node: a folder on the host, an absolute path, to which code and run directory are
    copied by rsync; what the run writes there comes back. By default the host shares the folders of this machine."""
    cluster: Text | None = None
    """Name of a cluster profile, or its file, for `submit`."""
    partition: Word | None = None
    """Partition, instead of the profile's."""
    account: Word | None = None
    """Account that is charged, instead of the profile's."""
    qos: Word | None = None
    """Quality of service, instead of the profile's."""
    time: Duration | None = None
    """How long one start may take before the cluster ends it; the profile's by default. A run that is not done by then
    saves, goes back into the queue and continues."""
    memory_per_node: Annotated[Memory | None, AlsoCalled("mem")] = None
    """Memory to request per node, in SLURM's --mem format: 500G; the profile's by default."""
    stop_margin: Duration = 120
    """How long before its time limit a run is asked to save and stop."""
    max_requeues: Size = 100
    """How often a run may be requeued, or restarted by its launcher, before it is given up."""
    requeue_delay: Duration = 30
    """How long a failed run waits before it may start again; twice as long after each further failure without a new
    checkpoint, up to sixteen times. Five failures in a row without one end the run. Time limits and preemptions are not
    failures, and cause no wait."""
    on_failure: dict[FailureCause, Action] = Field(default_factory=empty_dict)
    """What to do after each cause: requeue the run, or restart it on this machine (`requeue`), the same but without the
    node at fault (`requeue_elsewhere`), or `stop`. By default time_limit, preempted, hang, killed
    and lost are requeued, node_fail, nccl_error and gpu_error are requeued elsewhere, and the others stop."""
    snapshot: bool = False
    """Run from a copy of the code, made when the job is submitted."""
    health_check: bool | None = None
    """Check GPUs, disks, clocks and the network between all nodes before the first step; on by default with several
    nodes."""

    @property
    def groups_products(self) -> bool:
        """Whether `env` leaves a rank's experts to kernels of all: it does not say no to `GROUPED_PRODUCTS`."""
        return self.env.get(GROUPED_PRODUCTS) != "0"

    @property
    def on_hosts(self) -> bool:
        """Whether the launcher starts the job on other machines."""
        return self.executor == ON_HOSTS
