"""Build models with experts as the runtime does, without memory, for every rank of each layout, and count.

Reads resolved jobs as JSON on standard input and prints, for each, [tp, pp, parameters] of every rank; with the
argument "matrices" only the parameters that Muon orthogonalises. A program of its own, because it tells torch that CUDA
tensors live on the "meta" device.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

from orchestrator.planning.vocabulary import vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.network import model
from orchestrator.runtime.optimizers.matrices import matrices_of
from orchestrator.runtime.processes.device import Device, select_device
from orchestrator.runtime.processes.process_groups import Ranks, seed_everything
from orchestrator.spec.job import JobSpec

META = Device("cpu", torch.device("meta"), "gloo", "cpu")


def all_parameters(job: JobSpec, chunks: list[Any]) -> int:
    return model.parameter_count(chunks)


def matrices(job: JobSpec, chunks: list[Any]) -> int:
    return sum(weight.numel() for chunk in chunks for weight in matrices_of(chunk, job.optimizer))


COUNTED = matrices if "matrices" in sys.argv else all_parameters


def counts(job: JobSpec) -> list[list[int]]:
    """Of every rank."""
    degrees, found = job.parallelism, []
    for rank in range(job.world_size):
        dist.init_process_group("fake", rank=rank, world_size=job.world_size, store=FakeStore())
        parallel_state.initialize_model_parallel(
            degrees.tensor_model_parallel_size,
            degrees.pipeline_model_parallel_size,
            degrees.virtual_pipeline_model_parallel_size,
            context_parallel_size=degrees.context_parallel_size,
            expert_model_parallel_size=degrees.expert_model_parallel_size,
            expert_tensor_parallel_size=degrees.expert_tensor_parallel,
            create_gloo_process_groups=False,
        )
        tp = parallel_state.get_tensor_model_parallel_rank()
        pp, pp_size = parallel_state.get_pipeline_model_parallel_rank(), degrees.pipeline_model_parallel_size
        ranks = Ranks(
            rank, job.world_size, tp, degrees.tensor_model_parallel_size, pp, pp_size, 0, 1, degrees.num_model_chunks
        )
        seed_everything(job.runtime.seed, ranks)
        config = model.transformer_config(job, META, "torch")
        chunks = model.build_chunks(job, config, META, "torch", vocabulary(job), ranks)
        found.append([tp, pp, COUNTED(job, chunks)])
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    return found


if __name__ == "__main__":
    megatron_compat.apply(select_device("cpu", threads=1))
    vars(model)["initialize_weights"] = lambda *args, **kwargs: None
    torch.cuda.current_device = lambda: META.torch_device  # type: ignore[assignment,return-value]
    print(json.dumps([counts(JobSpec.model_validate(job)) for job in json.load(sys.stdin)]))
