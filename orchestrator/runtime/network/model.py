"""The network of one rank, built from a job spec by its model's family."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import nullcontext
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.errors import MissingDependency
from orchestrator.kernel_selection.data_parallel import bucket_size, overlaps_gathering, overlaps_reduction
from orchestrator.kernel_selection.fused_kernels import (
    fuses_activation,
    fuses_dropout,
    fuses_rotation,
    gate_in_one_kernel,
    normalizes_in_kernels,
    rotates_projection,
)
from orchestrator.models.blocks.base import LayerSetup
from orchestrator.models.layers import blocks_of, layers_differ, mixers_of, settings_of
from orchestrator.planning.parameters.layer import degrees_of
from orchestrator.planning.vision import rotates_images
from orchestrator.planning.vocabulary import Vocabulary, vocabulary
from orchestrator.runtime.cuda_graphs import Graphs
from orchestrator.runtime.families.registry import family_of
from orchestrator.runtime.families.vision import is_of_images, is_zero_centered
from orchestrator.runtime.layers.biases import add_behind_experts, add_in_products
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.expert_kernels import kernel_settings, require_grouped_products
from orchestrator.runtime.layers.gated_linear_unit import use_gate
from orchestrator.runtime.layers.gelu import gelu
from orchestrator.runtime.layers.grouped_experts.expert_mlp import join_expert_mlps
from orchestrator.runtime.layers.parameter_attributes import keep_experts_apart
from orchestrator.runtime.layers.transformer_engine.availability import absence
from orchestrator.runtime.layers.transformer_engine.quantization import quantization_settings
from orchestrator.runtime.layers.weight_gradient import fuses_accumulation
from orchestrator.runtime.network.fully_sharded.data_parallel import FullyShardedDataParallel
from orchestrator.runtime.network.fully_sharded.memory import without_memory
from orchestrator.runtime.network.gradient_reduction import finalize
from orchestrator.runtime.network.initialization import Stream, fill_weights, initialize_weights
from orchestrator.runtime.network.lora import add_adapters
from orchestrator.runtime.network.small_gradients import add_together
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers, RuntimeSpec

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def transformer_config(job: JobSpec, device: Device, layers: Layers) -> LayerConfig:
    """The spec in megatron-core's words."""
    model, parallelism, runtime = job.model, job.parallelism, job.runtime
    dtype = DTYPES[job.precision.dtype]
    pipelined = parallelism.pipeline_model_parallel_size > 1
    if runtime.cpu_offloading_num_layers is not None and layers != "transformer_engine":
        raise MissingDependency(
            "runtime.cpu_offloading_num_layers needs Transformer Engine's layers, and this run has torch's: "
            f"{absence()}; leave it out, or recompute activations"
        )
    require_grouped_products(job, layers)
    interleaved = parallelism.virtual_pipeline_model_parallel_size is not None
    of_blocks, mixers = _block_settings(job, device), mixers_of(model)
    own = {field.name for field in dataclasses.fields(LayerConfig)}
    config = LayerConfig(
        attention=model.attention.name,
        mixers=tuple(mixer.name for mixer in mixers) if len(set(mixers)) > 1 else (),
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        normalization=model.normalization,
        layernorm_epsilon=model.norm_epsilon,
        layernorm_zero_centered_gamma=model.apply_layernorm_1p,
        add_bias_linear=model.add_bias_linear,
        hidden_dropout=model.hidden_dropout,
        **{name: value for name, value in of_blocks.items() if name in own},
        hetereogenous_dist_checkpoint=layers_differ(model),
        # Weights are filled afterwards, the same for every layout; megatron-core still marks which are split.
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=job.precision.dtype == "bf16",
        fp16=job.precision.dtype == "fp16",
        calculate_per_token_loss=job.has_per_token_loss,
        packs=job.data.packs,
        masks_images=model.attends_both_ways_in_images,
        deallocate_pipeline_outputs=pipelined,
        # With two stages, an interleaved schedule sends both ways between the same two ranks in one NCCL batch, which
        # matches them up wrongly; separate, overlapped sends do not.
        batch_p2p_comm=device.is_cuda and not interleaved,
        # The host does not wait for a transfer, for which megatron-core has it wait because of an old bug of torch: the
        # GPU would have nothing to do until the host has started the next kernels.
        batch_p2p_sync=False,
        overlap_p2p_comm=device.is_cuda and interleaved,
        gradient_accumulation_fusion=fuses_accumulation(job, device, dtype),
        masked_softmax_fusion=False,
        bias_dropout_fusion=device.is_cuda and fuses_dropout(model),
        apply_rope_fusion=fuses_rotation(model, layers),
        rotates_projection=device.is_cuda and rotates_projection(job, layers),
        rotates_images=device.is_cuda and rotates_images(job, layers),
        normalizes_in_kernels=device.is_cuda and normalizes_in_kernels(job, layers),
        deterministic_mode=runtime.deterministic and device.is_cuda,
        **_parallelism_settings(parallelism),
        **_memory_settings(runtime),
        **kernel_settings(job, layers),
        **quantization_settings(job.precision, layers),
    )
    for name in of_blocks.keys() - own:
        setattr(config, name, of_blocks[name])
    if device.is_cuda and (gate := gate_in_one_kernel(job)) is not None:
        use_gate(config, gate)
    return config


def _block_settings(job: JobSpec, device: Device) -> dict[str, Any]:
    fused = device.is_cuda and fuses_activation(job.model)
    setup = LayerSetup(job.data_parallel_size, degrees_of(job.parallelism), fused, gelu)
    return settings_of(blocks_of(job.model), job.model, setup)


def _parallelism_settings(degrees: ParallelismSpec) -> dict[str, Any]:
    pipelined = degrees.pipeline_model_parallel_size > 1
    return {
        "tensor_model_parallel_size": degrees.tensor_model_parallel_size,
        "pipeline_model_parallel_size": degrees.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": degrees.virtual_pipeline_model_parallel_size,
        "num_layers_in_first_pipeline_stage": degrees.num_layers_in_first_pipeline_stage,
        "num_layers_in_last_pipeline_stage": degrees.num_layers_in_last_pipeline_stage,
        "account_for_embedding_in_pipeline_split": degrees.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": degrees.account_for_loss_in_pipeline_split,
        "pipeline_model_parallel_layout": degrees.pipeline_model_parallel_layout if pipelined else None,
        "sequence_parallel": degrees.uses_sequence_parallel,
        "context_parallel_size": degrees.context_parallel_size,
    }


def _memory_settings(runtime: RuntimeSpec) -> dict[str, Any]:
    """What is computed again or kept elsewhere."""
    return {
        "recompute_granularity": runtime.recompute_granularity,
        "recompute_method": runtime.recompute_method,
        "recompute_num_layers": runtime.recompute_num_layers,
        "recompute_modules": list(runtime.recomputed_modules),
        "distribute_saved_activations": runtime.distribute_saved_activations,
        "cpu_offloading": runtime.cpu_offloading_num_layers is not None,
        "cpu_offloading_num_layers": runtime.cpu_offloading_num_layers or 0,
    }


def _leave(weight: torch.Tensor) -> torch.Tensor:
    return weight


def build_chunks(
    job: JobSpec, config: TransformerConfig, device: Device, layers: Layers, words: Vocabulary, ranks: Ranks
) -> list[Any]:
    """The model chunks of this rank (one, or one per virtual stage), weights filled; where replicas share them out,
    `wrap_data_parallel` fills them, a layer at a time.
    """
    build_chunk = family_of(job).build_chunk
    with without_memory(device.torch_device, config.params_dtype) if job.is_fully_sharded else nullcontext():
        chunks = [build_chunk(job, config, layers, words, ranks, index) for index in range(ranks.num_chunks)]
    for chunk in chunks:
        add_in_products(chunk)
        add_behind_experts(chunk)
        join_expert_mlps(chunk, job, config, layers)
        if job.model.has_adapters:
            add_adapters(chunk, job.model, config)
        chunk.to(device.torch_device, config.params_dtype)
    keep_experts_apart(chunks)
    for block in blocks_of(job.model):
        block.prepare(chunks, job.model)
    if not job.is_fully_sharded:
        initialize_weights(chunks, **_initialization(job, words))
    return chunks


def _initialization(job: JobSpec, words: Vocabulary) -> dict[str, Any]:
    return {
        "seed": job.runtime.seed,
        "std": job.model.init_method_std,
        "vocab_size": words.size,
        "stream_of": functools.partial(_stream_of, job.model),
    }


def _stream_of(model: ModelSpec, weight: str) -> Stream:
    if model.has_vision and is_of_images(weight):
        return Stream(2 * model.image_encoder.num_layers, norm_weight=0.0 if is_zero_centered(weight) else 1.0)
    branches = model.num_layers * model.family.residual_branches
    return Stream(branches, norm_weight=0.0 if model.apply_layernorm_1p else 1.0)


def parameter_count(chunks: list[Any]) -> int:
    """Parameters that this rank holds, a tied output layer's copy on the last stage included."""
    return sum(parameter.numel() for chunk in chunks for parameter in chunk.parameters())


def wrap_data_parallel(
    job: JobSpec, config: TransformerConfig, chunks: list[Any], graphs: Graphs | None = None
) -> list[Any]:
    """The chunks with gradient buffers, and gradient reduction and parameter gathering as the spec says.

    `graphs`: what captures the passes; communication is no part of them, so that none overlaps.
    """
    if job.is_fully_sharded:
        return _wrap_fully_sharded(job, config, chunks)
    overlap_reduce = overlaps_reduction(job, captured=graphs is not None)
    overlap_gather = overlaps_gathering(job, captured=graphs is not None)
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=job.precision.grad_reduce_in_fp32,
        use_distributed_optimizer=job.parallelism.use_distributed_optimizer,
        overlap_grad_reduce=overlap_reduce,
        overlap_param_gather=overlap_gather,
        check_for_nan_in_grad=False,
        # Each virtual stage but the first reduces as soon as it is done, so it is not split into buckets.
        bucket_size=bucket_size(job) if overlap_reduce else None,
    )
    with nullcontext() if graphs is None else graphs.apart():
        wrapped = [
            DistributedDataParallel(config, settings, chunk, disable_bucketing=index > 0)
            for index, chunk in enumerate(chunks)
        ]
    if not overlap_reduce:
        add_together(wrapped)
    shared_too = [chunk for chunk in chunks if hasattr(chunk, "reduce_shared_gradients")]
    config.finalize_model_grads_func = functools.partial(finalize, shared_too)
    several = len(wrapped) > 1
    if overlap_reduce:
        no_syncs = [chunk.no_sync for chunk in wrapped]
        config.no_sync_func = no_syncs if several else no_syncs[0]
    if overlap_gather:
        gathers = [chunk.start_param_sync for chunk in wrapped]
        config.param_sync_func = gathers if several else gathers[0]
    return wrapped


def _wrap_fully_sharded(job: JobSpec, config: TransformerConfig, chunks: list[Any]) -> list[Any]:
    """The one chunk of a rank, whose weights its replicas share out."""
    # The wrapper gathers weights itself: for megatron-core nothing overlaps.
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=job.precision.grad_reduce_in_fp32,
        use_distributed_optimizer=True,
        num_distributed_optimizer_instances=job.sharded_copies,
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        check_for_nan_in_grad=False,
    )
    config.finalize_model_grads_func = functools.partial(finalize, [])
    fill = functools.partial(fill_weights, **_initialization(job, vocabulary(job)))
    return [
        FullyShardedDataParallel(
            config,
            settings,
            chunk,
            fill,
            prefetches=overlaps_gathering(job, captured=False),
            overlaps=overlaps_reduction(job, captured=False),
        )
        for chunk in chunks
    ]
