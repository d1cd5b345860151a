"""How many queues a process has its GPU take work through: CUDA_DEVICE_MAX_CONNECTIONS."""

from __future__ import annotations

from orchestrator.spec.job_sections import JobSections

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_BY_CUDA = 8


def device_connections(job: JobSections) -> int:
    """What `launch.env` says, or what a launch chooses."""
    written = job.launch.env.get(CONNECTIONS, "")
    if written.isdecimal():
        return int(written)
    degrees, offloads = job.parallelism, job.runtime.cpu_offloading_num_layers is not None
    return chosen_connections(offloads, degrees.tensor_model_parallel_size, degrees.context_parallel_size)


def megatron_connections(job: JobSections) -> int:
    """The same for Megatron-LM's programs, which refuse one with their FSDP."""
    return _BY_CUDA if job.is_fully_sharded else device_connections(job)


def chosen_connections(offloads: bool, tp: int, cp: int) -> int:
    """One: work then begins in the order in which the host gave it, so that a collective comes before the products that
    are to hide it. In that one queue, though, a copy from the host's memory holds up what is computed behind it: a job
    that offloads activations, without tensor and context parallelism, has as many as CUDA has by itself
    (docs/benchmarks/results.md).
    """
    return _BY_CUDA if offloads and tp == cp == 1 else 1
