"""The network of a run, restored from a checkpoint for generation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

from orchestrator.errors import CheckpointError
from orchestrator.inference.network import Network
from orchestrator.models.blocks.registry import BLOCKS
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.checkpointing.checkpoint_reader import load
from orchestrator.runtime.checkpointing.newest_across_ranks import newest_whole, require_whole, require_whole_at
from orchestrator.runtime.network.lora import merge_adapters
from orchestrator.runtime.network.model import build_chunks, transformer_config
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import seed_everything, start_process_groups
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.self_contained_checkpoints import Weights
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stage_letters import evenly

_TIMEOUT_SECONDS = 600.0


def open_network(
    weights: Weights,
    iteration: int | None = None,
    patience: float = _TIMEOUT_SECONDS,
    store: Store | None = None,
    num_speculative_tokens: int = 0,
) -> tuple[Network, Commit]:
    """Join the processes of one replica at the job's TP and PP and load a checkpoint: the one that was named, or of a
    run the newest whole one by default.

    Those that are passed over are named on standard error. Raises CheckpointError, on all ranks alike, when there is
    none, or when the one of `iteration` is not whole. `patience`: seconds that ranks wait for each other.
    `store`: see `start_process_groups`. `num_speculative_tokens`: layers of multi-token prediction that are loaded,
    each of which drafts a token.
    """
    job, run = without_training(weights.job, num_speculative_tokens), weights.run
    device = select_device(job.runtime.device, threads=job.runtime.threads_per_rank)
    megatron_compat.apply(device)
    ranks, groups = start_process_groups(job, device, patience, store)
    control = Control(groups.control)
    commit: Commit | None
    if run is None:
        commit = require_whole_at(weights.path, control, ranks)
    elif iteration is None:
        commit = newest_whole(run, control, ranks, _warn)
    else:
        commit = require_whole(run, iteration, control, ranks)
    if commit is None:
        raise CheckpointError(f"{weights.label} has no complete checkpoint to generate from", code="no_checkpoint")
    seed_everything(job.runtime.seed, ranks)
    words = vocabulary(job)
    config = transformer_config(job, device, "torch")
    [module] = build_chunks(job, config, device, "torch", words, ranks)
    loaded = load({"model": module.sharded_state_dict()}, commit.path)
    module.load_state_dict(loaded["model"])
    merge_adapters(module)
    return Network(module.eval(), job, words.size, ranks, groups, device), commit


def _warn(path: Path, message: str) -> None:
    print(f"warning: skipped a checkpoint: {message}", file=sys.stderr, flush=True)


def without_training(job: JobSpec, num_speculative_tokens: int = 0) -> JobSpec:
    """The same network without what only training uses: replicas, over which experts may be spread, virtual stages,
    sequences that are shared out, layers that predict further tokens but for those that draft them, and a capacity of
    experts: which tokens that drops, megatron-core's router would decide by padding and by the other texts of a batch.
    """
    parallelism: dict[str, Any] = {
        **{"data_parallel_size": 1, "context_parallel_size": 1, "expert_model_parallel_size": 1},
        **{"sequence_parallel": False, "virtual_pipeline_model_parallel_size": None, "fsdp": None},
    }
    if job.parallelism.pipeline_model_parallel_layout is not None:  # of virtual stages, which there are none of now
        letters = evenly(job.model.num_layers, job.parallelism.pipeline_model_parallel_size)
        parallelism["pipeline_model_parallel_layout"] = letters
    # What has no logits for a loss has none to draw from; what is kept for a backward pass is not kept.
    unused = {"fused_linear_cross_entropy": False, "cpu_offloading_num_layers": None}
    runtime = {**unused, "gradient_accumulation_fusion": False}
    model = {name: value for block in BLOCKS for name, value in block.at_inference(num_speculative_tokens).items()}
    return job.changed(parallelism=parallelism, runtime=runtime, model=model)
