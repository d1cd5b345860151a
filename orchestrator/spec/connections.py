"""How many queues a process has its GPU take work through: CUDA_DEVICE_MAX_CONNECTIONS."""

from __future__ import annotations

from orchestrator.spec.sections import JobSections

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_CUDAS = 8


def device_connections(job: JobSections) -> int:
    """One, so that work begins in the order in which the host gave it and a collective comes before the products that
    are to hide it. In that one queue, though, a copy from the host's memory holds up what is computed behind it: a job
    that keeps activations there, and whose ranks share no layer, has as many as CUDA has by itself (1.7B with eight
    layers offloaded: 794 ms a step in place of 938; docs/benchmarks/2026-11-26-h100.md).
    """
    degrees = job.parallelism
    shares = degrees.tensor_model_parallel_size > 1 or degrees.context_parallel_size > 1
    return 1 if shares or job.runtime.cpu_offloading_num_layers is None else _CUDAS
