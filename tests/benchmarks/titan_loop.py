"""One rank of torchtitan's training: what our runtime is measured beside, as of megatron-core it is by `plain_loop.py`.

torchtitan's own `Trainer` and Llama, with layers and loss compiled, nothing recomputed, FSDP over replicas, its tensor
parallelism with sequence parallelism, and all else as it comes. Of ours it has the job and the order of the
samples; its initial weights are its own, so that losses are not compared. Without FSDP it has no mixed precision under
tensor parallelism: everything is in bf16 there, gradients and Adam's state too, which is less than ours does. It takes
what `support/measured_rank.py` takes, one run directory, and writes what that writes, so that a `Meter` measures
either. By hand, where the package torchtitan is installed, with a file that holds the path of a run directory with a
spec:

    torchrun --nproc-per-node 2 tests/benchmarks/titan_loop.py FILE
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.__main__ import write_log_to_run
from orchestrator.runtime.batch_sampler import MicroBatchSampler
from orchestrator.runtime.startup import open_data
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

_NAME = "job"
_WORKERS = 2


def main() -> int:
    """Train as one rank. 0 when all steps were done, 1 when one failed."""
    run, rank = RunDir(Path(Path(sys.argv[1]).read_text().splitlines()[0])), int(os.environ["RANK"])
    write_log_to_run(run, rank)
    # torchtitan's own launch sets neither what megatron-core needs nor torch's default allocator.
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        found = train(run, load_resolved(run.resolved()))
    except Exception as error:
        traceback.print_exc()
        if "out of memory" in str(error).lower():
            write_atomically(run.path / f"measured-{rank}.json", json.dumps({"out_of_memory": str(error)}))
        return 1
    write_atomically(run.path / f"measured-{rank}.json", json.dumps(found))
    torch.distributed.barrier()
    return 0


class Samples:
    """The job's samples in its order, as torchtitan takes them: tokens [b, s] by name, and labels [b, s]."""

    def __init__(self, run: RunDir, job: JobSpec, replica: int) -> None:
        schedule = BatchSchedule.of(job)
        data = open_data(job, run, vocabulary(job), schedule).train
        assert data is not None
        sampler = MicroBatchSampler(schedule, 0, schedule.train_samples, replica)
        self._loader = DataLoader(data, batch_sampler=sampler, num_workers=_WORKERS, pin_memory=True)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for samples in self._loader:
            yield {"input": samples["tokens"]}, samples["labels"]


def train(run: RunDir, job: JobSpec) -> dict[str, Any]:
    """All steps of a job; what `Measured` wants to know of them."""
    from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
    from torchtitan.train import Trainer

    spec = replace(
        get_train_spec("llama3"),
        model_args={_NAME: arguments_of(job)},
        build_tokenizer_fn=None,
        build_dataloader_fn=lambda dp_rank, **unused: Samples(run, job, dp_rank),
        state_dict_adapter=None,
    )
    register_train_spec(_NAME, spec)
    trainer = Trainer(config_of(job, run))
    wide = next(iter(trainer.model_parts[0].layers.values())).feed_forward.w1.weight.size(0)
    assert wide == job.model.ffn_size, f"an MLP of {wide}"
    samples = trainer.batch_generator(trainer.dataloader)
    moments = [_moment()]
    for step in range(job.schedule.train_iters or 0):
        trainer.step = step + 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(samples)
        moments.append(_moment())
    torch.cuda.synchronize()
    seconds = [before.elapsed_time(after) / 1e3 for before, after in pairwise(moments)]
    free, whole = torch.cuda.mem_get_info()
    return {
        "seconds": seconds,
        "intervals": seconds,
        "losses": [],
        "grad_norms": [],
        "layers": "torch",
        "device": torch.cuda.get_device_name(),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": whole - free,
    }


def arguments_of(job: JobSpec) -> Any:
    """The job's model in torchtitan's words; raises AssertionError where its Llama is another."""
    from torchtitan.models.llama3 import TransformerModelArgs

    model = job.model
    assert (model.activation, model.normalization) == ("swiglu", "RMSNorm")
    assert model.untie_embeddings_and_output_weights
    assert not model.add_bias_linear
    return TransformerModelArgs(
        dim=model.hidden_size,
        n_layers=model.num_layers,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.query_groups,
        vocab_size=vocabulary(job).padded_size,
        multiple_of=model.ffn_size,  # it takes 8/3 of the width, and rounds up to a multiple of this
        norm_eps=model.norm_epsilon,
        rope_theta=model.rotary_base,
    )


def config_of(job: JobSpec, run: RunDir) -> Any:
    """The job's training in torchtitan's words."""
    from torchtitan.config import JobConfig

    found, optimizer = JobConfig(), job.optimizer
    found.job.dump_folder = str(run.path / "torchtitan")
    found.model.name = found.model.flavor = _NAME
    found.training.steps = job.schedule.train_iters
    # It says something of the first step then and no more: with that it forgets the memory's peak.
    found.metrics.log_freq = found.training.steps + 1
    found.training.local_batch_size = job.batch.micro_batch_size
    found.training.global_batch_size = job.global_batch_size
    found.training.seq_len = job.model.seq_length
    found.training.max_norm = optimizer.clip_grad
    found.parallelism.tensor_parallel_degree = job.parallelism.tensor_model_parallel_size
    if job.data_parallel_size == 1 and job.parallelism.tensor_model_parallel_size > 1:
        found.training.dtype = "bfloat16"
    found.activation_checkpoint.mode = "none"
    found.compile.enable = True
    found.optimizer.lr, found.optimizer.weight_decay = optimizer.lr, optimizer.weight_decay
    found.optimizer.beta1, found.optimizer.beta2 = optimizer.adam_beta1, optimizer.adam_beta2
    found.lr_scheduler.warmup_steps = 2
    return found


def _moment() -> Any:
    """Now, as the GPU counts: nothing waits for it."""
    moment = torch.cuda.Event(enable_timing=True)
    moment.record()
    return moment


if __name__ == "__main__":
    sys.exit(main())
