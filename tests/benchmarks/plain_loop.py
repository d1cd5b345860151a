"""One rank of the smallest loop over megatron-core itself: what our runtime is measured beside.

megatron-core's GPT with its own layer specs, data parallelism, optimizer and schedules, with the flags that Megatron-LM
sets in a usual launch; of ours it has the job, the order of the samples and the initial weights, so that both train the
same. It takes what `support/measured_rank.py` takes, one run directory, and writes what that writes, so that a `Meter`
measures either. By hand, with a file that holds the path of a run directory with a spec:

    CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 2 tests/benchmarks/plain_loop.py FILE
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

import torch  # isort: skip
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import distributed

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.hyperparameters import HyperparameterSchedule
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.__main__ import write_log_to_run
from orchestrator.runtime.batch_sampler import BatchStream, MicroBatchSampler
from orchestrator.runtime.network.initialization import Stream, initialize_weights
from orchestrator.runtime.processes.device import Device, select_device
from orchestrator.runtime.processes.process_groups import (
    Ranks,
    connect_stages,
    start_process_groups,
)
from orchestrator.runtime.startup import open_data
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def main() -> int:
    """Train as one rank. 0 when all steps were done, 1 when one failed."""
    run, rank = RunDir(Path(Path(sys.argv[1]).read_text().splitlines()[0])), int(os.environ["RANK"])
    write_log_to_run(run, rank)
    try:
        job = load_resolved(run.resolved())
        found = train(run, job, select_device(job.runtime.device, threads=job.runtime.threads_per_rank))
    except Exception as error:
        traceback.print_exc()
        if "out of memory" in str(error).lower():
            write_atomically(run.path / f"measured-{rank}.json", json.dumps({"out_of_memory": str(error)}))
        return 1
    write_atomically(run.path / f"measured-{rank}.json", json.dumps(found))
    distributed.barrier()  # two replicas that ended their groups, one after the other, did not come to an end
    return 0


def config_of(job: JobSpec, *, on_gpu: bool) -> TransformerConfig:
    """The model in megatron-core's words, with what it fuses."""
    model, parallelism, dtype = job.model, job.parallelism, _DTYPES[job.precision.dtype]
    assert model.activation == "gelu"
    fp8, interleaved = job.precision.fp8, parallelism.virtual_pipeline_model_parallel_size is not None
    in_fp8: dict[str, Any] = {}
    if fp8 is not None:
        in_fp8 = {"fp8": fp8.chosen_format, "fp8_recipe": fp8.recipe, "fp8_amax_history_len": fp8.amax_history_len}
        in_fp8["fp8_amax_compute_algo"] = fp8.amax_compute_algo
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        kv_channels=model.head_dim,
        normalization=model.normalization,
        layernorm_epsilon=model.norm_epsilon,
        add_bias_linear=model.add_bias_linear,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        tensor_model_parallel_size=parallelism.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallelism.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=parallelism.virtual_pipeline_model_parallel_size,
        num_layers_in_last_pipeline_stage=parallelism.num_layers_in_last_pipeline_stage,
        sequence_parallel=parallelism.uses_sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=job.precision.dtype == "bf16",
        # An interleaved schedule of two stages works only with overlapped sends, and it frees what it still sends.
        batch_p2p_comm=on_gpu and not interleaved,
        overlap_p2p_comm=on_gpu and interleaved,
        deallocate_pipeline_outputs=not interleaved and parallelism.pipeline_model_parallel_size > 1,
        masked_softmax_fusion=on_gpu,
        bias_dropout_fusion=on_gpu,
        bias_activation_fusion=on_gpu and model.add_bias_linear,  # megatron-core has none without biases
        apply_rope_fusion=on_gpu,
        cross_entropy_loss_fusion=True,
        **in_fp8,
    )


def build(job: JobSpec, config: TransformerConfig, device: Device, ranks: Ranks) -> list[Any]:
    """This rank's chunks of the network, with the weights that our runtime begins with."""
    model, words = job.model, vocabulary(job)
    spec = get_gpt_layer_with_transformer_engine_spec() if device.is_cuda else get_gpt_layer_local_spec()
    interleaved = job.parallelism.virtual_pipeline_model_parallel_size is not None
    chunks = [
        GPTModel(
            config,
            spec,
            vocab_size=words.padded_size,
            max_sequence_length=model.positions,
            pre_process=ranks.is_pre_process(index),
            post_process=ranks.is_post_process(index),
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            rotary_base=model.rotary_base,
            share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
            vp_stage=index if interleaved else None,
        ).to(device.torch_device, config.params_dtype)
        for index in range(ranks.num_chunks)
    ]
    for module in (module for chunk in chunks for module in chunk.modules()):
        # The output layer's needs apex; a usual launch has both.
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True
    initialize_weights(
        chunks,
        seed=job.runtime.seed,
        std=model.init_method_std,
        vocab_size=words.size,
        stream_of=lambda weight: Stream(2 * model.num_layers, norm_weight=1.0),
    )
    return chunks


def wrap(config: TransformerConfig, chunks: list[Any], replicas: int) -> list[Any]:
    """The chunks in megatron-core's data parallelism, which overlaps where there is something to overlap."""
    overlap = replicas > 1
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        bucket_size=max(40_000_000, 1_000_000 * replicas) if overlap else None,
    )
    wrapped = [
        DistributedDataParallel(config, settings, chunk, disable_bucketing=index > 0)
        for index, chunk in enumerate(chunks)
    ]
    config.finalize_model_grads_func = finalize_model_grads
    if overlap:
        no_syncs = [chunk.no_sync for chunk in wrapped]
        config.no_sync_func = no_syncs if len(wrapped) > 1 else no_syncs[0]
    return wrapped


def optimizer_of(job: JobSpec, chunks: list[Any]) -> Any:
    """megatron-core's, over the Adam that it finds."""
    spec = job.optimizer
    return get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=spec.lr,
            weight_decay=spec.weight_decay,
            adam_beta1=spec.adam_beta1,
            adam_beta2=spec.adam_beta2,
            adam_eps=spec.adam_eps,
            clip_grad=spec.clip_grad,
            bf16=job.precision.dtype == "bf16",
            params_dtype=_DTYPES[job.precision.dtype],
            use_distributed_optimizer=True,
            overlap_param_gather=chunks[0].ddp_config.overlap_param_gather,
        ),
        chunks,
    )


def forward_step(batches: Any, model: Any) -> Any:
    """A micro-batch's loss, the mean over its tokens."""
    batch = next(batches)
    mask = None
    if not batch["tokens"].is_cuda:  # megatron-core would make it on a GPU
        mask = torch.ones(batch["tokens"].shape[-1:] * 2).triu(1).bool()[None, None]
    output = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])

    def loss(output: torch.Tensor) -> Any:
        mask = batch["loss_mask"].view(-1)
        total, count = (output.float().view(-1) * mask).sum(), mask.sum()
        return total / count, {"loss": torch.stack([total.detach(), count])}

    return output, loss


def begin(job: JobSpec, device: Device) -> Ranks:
    """Join the other ranks, in the groups that megatron-core makes."""
    if not device.is_cuda:
        megatron_compat.apply(device)  # on a CPU it runs with our shim only
    ranks, groups = start_process_groups(job, device, timeout_seconds=600)
    if device.is_cuda and ranks.num_chunks > 1:
        connect_stages(ranks, groups, device)
    torch.manual_seed(job.runtime.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(job.runtime.seed)
    return ranks


def train(run: RunDir, job: JobSpec, device: Device) -> dict[str, Any]:
    """All steps of a job; what `Measured` wants to know of them."""
    ranks = begin(job, device)
    config = config_of(job, on_gpu=device.is_cuda)
    chunks = wrap(config, build(job, config, device, ranks), ranks.dp_size)
    optimizer = optimizer_of(job, chunks)
    config.grad_scale_func = optimizer.scale_loss
    schedule = BatchSchedule.of(job)
    values = HyperparameterSchedule.of(job, schedule)
    data = open_data(job, run, vocabulary(job), schedule).train
    assert data is not None
    sampler = MicroBatchSampler(schedule, 0, schedule.train_samples, ranks.dp)
    workers = 0 if job.data.random_tokens or not device.is_cuda else 2
    batches = BatchStream(data, sampler, lambda samples: samples, device, workers, len(chunks)).iterators()
    several, forward_backward = len(chunks) > 1, get_forward_backward_func()
    sums, norms, ended = [], [], [time.time()]
    for step in range(schedule.train_iters):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        reports = forward_backward(
            forward_step_func=forward_step,
            data_iterator=batches if several else batches[0],
            model=chunks if several else chunks[0],
            num_microbatches=schedule.num_micro_batches(0),
            seq_length=job.model.seq_length,
            micro_batch_size=job.batch.micro_batch_size,
            forward_only=False,
        )
        now = values.at(step * schedule.global_batch_size(0))
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = now.lr, now.weight_decay * group["wd_mult"]
        _, norm, _ = optimizer.step()
        zero = torch.zeros(2, device=device.torch_device)
        sums.append(sum((report["loss"] for report in reports), zero))
        norms.append(float(norm))
        ended.append(time.time())
    layers = "transformer_engine" if device.is_cuda else "torch"
    found = {"intervals": _differences(ended), "losses": _losses(sums), "grad_norms": norms, "layers": layers}
    return {**found, "seconds": found["intervals"], "device": device.name, **_memory(device)}


def _differences(moments: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(moments)]


def _losses(sums: list[torch.Tensor]) -> list[float]:
    """Of each step over all replicas: only the last stages have them, each of its ranks the same."""
    whole = torch.stack(sums)
    distributed.all_reduce(whole)
    return [total / count for total, count in whole.tolist()]


def _memory(device: Device) -> dict[str, int]:
    if not device.is_cuda:
        return {"peak_bytes": 0, "reserved_bytes": 0, "used_bytes": 0}
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"peak_bytes": peak, "reserved_bytes": reserved, "used_bytes": whole - free}


if __name__ == "__main__":
    sys.exit(main())
