"""Whether the nodes of a cluster have room for the optimizer's state that a job keeps in host memory."""

from __future__ import annotations

from orchestrator.errors import Problem
from orchestrator.planning.checks.partition_limits import memory_of_node
from orchestrator.planning.memory import Memory
from orchestrator.quantities import memory_size
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

_FRACTION = "optimizer.offload_fraction"
_COPIES = 2
"""The state, and the copy of it that a checkpoint is written from."""


def beyond_host_memory(job: JobSpec, memory: Memory, cluster: ClusterSpec | None) -> list[Problem]:
    """That the state of a node's ranks takes more than the memory that the job gets there, where that is known."""
    there = None if cluster is None else memory_of_node(job, cluster)
    needed = _COPIES * memory.host_bytes * job.processes_per_node
    if there is None or cluster is None or needed <= there:
        return []
    fits = job.optimizer.offload_fraction * there / needed
    message = (
        f"optimizer state in host memory takes {memory_size(needed)} of a node, with the copy that is saved, but a "
        f"node of {cluster.name} gives {memory_size(there)}"
    )
    hint = f"at most offload_fraction: {int(100 * fits) / 100:g}, more nodes, or more of launch.memory_per_node"
    return [Problem(message, (_FRACTION, "launch.memory_per_node"), hint, code="out_of_host_memory")]
