"""How a job is spread over ranks, as a checkpoint remembers it."""

from __future__ import annotations

from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks


def layout(job: JobSpec) -> dict[str, int]:
    """What must be equal for generators to be restored and losses to be bitwise the same."""
    parallelism = job.parallelism
    experts = {"ep": parallelism.expert_model_parallel_size, "etp": parallelism.expert_tensor_parallel}
    return {
        "tp": parallelism.tensor_model_parallel_size,
        "pp": parallelism.pipeline_model_parallel_size,
        "vp": parallelism.num_model_chunks,
        "cp": parallelism.context_parallel_size,
        "dp": job.data_parallel_size,
        **_uneven_stages(job),
        **({"split": parallelism.pipeline_model_parallel_split_rank} if _says_split(job) else {}),
        **(experts if job.model.has_experts else {}),
    }


def _says_split(job: JobSpec) -> bool:
    return job.parallelism.pipeline_model_parallel_split_rank is not None


def _uneven_stages(job: JobSpec) -> dict[str, int]:
    """How many layers each chunk holds where that is not the same for all; empty where it is."""
    counts = [held for stage in layers_of_chunks(job.model.num_layers, job.parallelism) for held in stage]
    return {} if len(set(counts)) == 1 else {f"layers_{number}": held for number, held in enumerate(counts)}
