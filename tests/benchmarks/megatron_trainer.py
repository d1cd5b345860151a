"""One rank of Megatron-LM's own trainer, pretrain_gpt.py: what ours is measured beside where models have experts.

It gets the flags that `render --as megatron-lm` writes for the job, which say the same kernels as ours takes; of ours
it has the samples in their order and the initial weights, so that both train the same. What usually comes with it and
is missing on a host without apex is apex's product that adds weight gradients: ours stands in for it. It takes what
`support/measured_rank.py` takes, one run directory, and writes what that writes, so that a `Meter` measures either.
$MEGATRON_LM names a checkout of Megatron-LM, of the version of the megatron-core that is installed. By hand, with a
file that holds the path of a run directory with a spec:

    MEGATRON_LM=~/Megatron-LM torchrun --nproc-per-node 4 tests/benchmarks/megatron_trainer.py FILE
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip
from torch import distributed

from orchestrator.migration.to_megatron import to_megatron
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.__main__ import write_log_to_run
from orchestrator.runtime.layers.weight_gradient import accumulate
from orchestrator.runtime.network.initialization import Stream, initialize_weights
from orchestrator.runtime.startup import open_data
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

CHECKOUT = "MEGATRON_LM"
_NOT_MEASURED = ("--async-save", "--log-interval", "--split", "--eval-iters", "--eval-interval")
"""Flags about what is done beside the steps; those with a word are written anew below."""


def main() -> int:
    """Train as one rank. 0 when all steps were done, 1 when one failed."""
    run, rank = RunDir(Path(Path(sys.argv[1]).read_text().splitlines()[0])), int(os.environ["RANK"])
    write_log_to_run(run, rank)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as ours has it
    job = load_resolved(run.resolved())
    try:
        found = train(run, job)
    except Exception as error:
        traceback.print_exc()
        if "out of memory" in str(error).lower():
            write_atomically(run.path / f"measured-{rank}.json", json.dumps({"out_of_memory": str(error)}))
        return 1
    write_atomically(run.path / f"measured-{rank}.json", json.dumps(found))
    distributed.barrier()
    return 0


def flags_of(job: JobSpec) -> list[str]:
    """The words behind pretrain_gpt.py."""
    words, skip = [], False
    for word in to_megatron(job).words:
        if word.startswith("--"):
            skip = word in _NOT_MEASURED
        if not skip:
            words.append(word)
    return [*words, "--log-interval", "1000", "--eval-interval", "1000", "--eval-iters", "0", "--split", "1,0,0"]


def train(run: RunDir, job: JobSpec) -> dict[str, Any]:
    """All steps of a job; what `Measured` wants to know of them."""
    checkout = os.environ[CHECKOUT]
    sys.path.append(checkout)
    apex = types.SimpleNamespace(wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate)
    modules: dict[str, Any] = sys.modules
    modules.setdefault("fused_weight_gradient_mlp_cuda", apex)
    from megatron.core.datasets import utils
    from megatron.core.tensor_parallel import layers

    # The wheel has them compiled, and no makefile.
    vars(utils)["compile_helpers"] = lambda: None
    vars(layers).update(fused_weight_gradient_mlp_cuda=apex, _grad_accum_fusion_available=True)
    from gpt_builders import gpt_builder
    from megatron.core.enums import ModelType
    from megatron.training import training
    from model_provider import model_provider
    from pretrain_gpt import forward_step

    words = vocabulary(job)

    def filled(*arguments: Any, **options: Any) -> Any:
        model = model_provider(gpt_builder, *arguments, **options).cuda()
        initialize_weights(
            [model],
            seed=job.runtime.seed,
            std=job.model.init_method_std,
            vocab_size=words.size,
            stream_of=lambda weight: Stream(2 * job.model.num_layers, norm_weight=1.0),
        )
        return model

    def datasets(counts: Any, vp_stage: int | None = None) -> tuple[Any, None, None]:
        return open_data(job, run, words, BatchSchedule.of(job)).train, None, None

    vars(datasets)["is_distributed"] = True
    ended, losses, norms = [time.time()], [], []
    original = training.train_step

    @functools.wraps(original)
    def train_step(*arguments: Any, **options: Any) -> Any:
        answer = original(*arguments, **options)
        ended.append(time.time())
        losses.append(answer[0].get("lm loss", 0.0))
        norms.append(float(answer[5]))
        return answer

    training.train_step = train_step
    sys.argv = ["pretrain_gpt.py", *flags_of(job)]
    training.pretrain(datasets, filled, ModelType.encoder_or_decoder, forward_step)
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    intervals = [after - before for before, after in pairwise(ended)]
    return {
        "intervals": intervals,
        "seconds": intervals,
        "losses": [float(loss) for loss in losses],
        "grad_norms": norms,
        "layers": "transformer_engine",
        "device": torch.cuda.get_device_name(),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": whole - free,
    }


if __name__ == "__main__":
    sys.exit(main())
