"""A rank that saves as Megatron-LM does with `--ckpt-format torch`: CHECKPOINT JOB OUT.

Loads a checkpoint of ours with its optimizer into megatron-core's own, at the layout of JOB, and writes what
`generate_state_dict` and `save_checkpoint` of Megatron-LM's training/checkpointing.py write: the file of each model
parallel rank, and beside it the distributed optimizer's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.enums import ModelType
from megatron.core.transformer.enums import AttnBackend

from orchestrator.conversion.megatron.arguments import to_arguments
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.network.model import build_chunks, transformer_config, wrap_data_parallel
from orchestrator.runtime.optimizer_step import build_optimizer
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.process_groups import seed_everything, start_process_groups, stop_process_groups
from orchestrator.spec.loading import load_resolved


def main() -> int:
    checkpoint, resolved, out = map(Path, sys.argv[1:])
    job = load_resolved(resolved)
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    ranks, _ = start_process_groups(job, device, 60.0)
    seed_everything(1, ranks)
    modules = build_chunks(job, transformer_config(job, device, "torch"), device, "torch", vocabulary(job), ranks)
    optimizer = build_optimizer(job, wrap_data_parallel(job, modules[0].config, modules))
    common = dist_checkpointing.load_common_state_dict(str(checkpoint))
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = {**dist_checkpointing.load_content_metadata(preloaded_state_dict=common), "dp_cp_group": group}
    [module] = modules
    model = module.sharded_state_dict(metadata=metadata)
    wanted = {
        "model": model,
        "optimizer": optimizer.sharded_state_dict({"model": model}, is_loading=True, metadata=metadata),
    }
    loaded = dist_checkpointing.load(wanted, str(checkpoint))
    module.load_state_dict(loaded["model"])
    with torch.no_grad():
        optimizer.load_state_dict(loaded["optimizer"])

    iteration, samples = common["train_state"]["iteration"], common["train_state"]["consumed_samples"]
    said = to_arguments(job, iteration=iteration, consumed_samples=samples, padded_vocab=vocabulary(job).padded_size)
    own = {"model_type": ModelType.encoder_or_decoder, "attention_backend": AttnBackend.auto, "rank": ranks.rank}
    state = {
        "args": argparse.Namespace(**{**said, **own, "ckpt_format": "torch"}),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "model": module.state_dict_for_save_checkpoint(),
        "optimizer": optimizer.state_dict(),
        "opt_param_scheduler": {"max_lr": 1e-3},
        "rng_state": [{"torch_rng_state": torch.get_rng_state()}],
        "num_floating_point_operations_so_far": 0,
    }
    folder = (
        out / f"iter_{iteration:07d}" / (f"mp_rank_{ranks.tp:02d}" + (f"_{ranks.pp:03d}" if ranks.pp_size > 1 else ""))
    )
    if ranks.dp == 0:
        folder.mkdir(parents=True)
        torch.save(state, folder / "model_optim_rng.pt")
    if job.parallelism.use_distributed_optimizer:
        optimizer.save_parameter_state(str(folder / "distrib_optim.pt"))
    if ranks.is_first:
        (out / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    torch.distributed.barrier()
    stop_process_groups()
    return 0


if __name__ == "__main__":
    sys.exit(main())
