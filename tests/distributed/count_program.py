"""One rank: build the network of each job as the runtime does and write {name: parameters} to OUT/rank-N.json.

`count_program.py OUT LARGEST JOB...`: networks of more than LARGEST parameters per rank are built without memory.
"""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from support import mamba_stub

from orchestrator.planning.parameters import parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.network import model
from orchestrator.runtime.processes.device import Device, select_device
from orchestrator.runtime.processes.process_groups import Ranks, seed_everything, start_process_groups
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

META = Device("cpu", torch.device("meta"), "gloo", "cpu")


def count(job: JobSpec, device: Device, ranks: Ranks) -> int:
    """Parameters that the runtime builds on this rank."""
    seed_everything(job.runtime.seed, ranks)
    words = vocabulary(job)
    config = model.transformer_config(job, device, "torch")
    chunks = model.build_chunks(job, config, device, "torch", words, ranks)
    return model.parameter_count(chunks)


def main() -> int:
    out, largest, *paths = sys.argv[1:]
    mamba_stub.install()
    device = select_device("cpu", threads=1)
    megatron_compat.apply(device)
    initialize, current_device = model.initialize_weights, torch.cuda.current_device
    counts = {}
    before, ranks = None, None
    for path in paths:
        job = load_resolved(Path(path))
        if ranks is None or job.parallelism != before:
            # Jobs of one layout share its groups, each of which has threads of its own.
            parallel_state.destroy_model_parallel()
            before, (ranks, _) = job.parallelism, start_process_groups(job, device, timeout_seconds=60)
            # The processes join once: a second time they would meet the first one's addresses in the store.
            dist.init_process_group = lambda *args, **kwargs: None
        fits = parameters(job, vocabulary(job).padded_size).largest_rank <= int(largest)
        model.initialize_weights = initialize if fits else lambda *args, **kwargs: None
        torch.cuda.current_device = current_device if fits else lambda: META.torch_device
        counts[Path(path).stem] = count(job, device if fits else META, ranks)
    (Path(out) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(counts))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
