"""Seconds of a training step, by part, from a job, a device and a layer backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from orchestrator.models.layers import Layer, layers, prediction_layers
from orchestrator.planning.encoder_decoder import halves_of_stage
from orchestrator.planning.flops import model_flops
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.layout.chunk_layers import Kinds, kinds_of, kinds_of_stages, shares_of
from orchestrator.planning.layout.pipeline import Timeline, timeline
from orchestrator.planning.parameters import stage_expert_parameters, stage_parameters
from orchestrator.planning.parameters.trainable import trained_expert_parameters, trained_parameters
from orchestrator.planning.time.adapters import adapted, tensors_of_adapters
from orchestrator.planning.time.data_parallel import data_parallel_seconds
from orchestrator.planning.time.families.t5 import half_layer_pass, settings_of_halves
from orchestrator.planning.time.families.vision import images_of, trained_layers
from orchestrator.planning.time.host import NOTHING, started_again, with_host
from orchestrator.planning.time.kernels.accesses import Kernels, kernels_of
from orchestrator.planning.time.kernels.elementwise import accumulation_seconds, optimizer_seconds
from orchestrator.planning.time.muon import muon_seconds
from orchestrator.planning.time.offloading import waiting_for_state, with_offloading
from orchestrator.planning.time.passes import (
    Parts,
    Pass,
    add,
    embedding_pass,
    layer_pass,
    output_pass,
    pipeline_group,
    recomputed,
    scale,
)
from orchestrator.planning.time.pipeline_schedule import pipeline_seconds
from orchestrator.planning.time.setting import Setting, setting_of
from orchestrator.spec.encoder_decoder import HALVES
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.sections.runtime import Layers

PARTS = (
    "gemm",
    "attention",
    "memory_bound",
    "loss",
    "recompute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_transfer",
    "bubble",
    "data_parallel",
    "optimizer",
    "overhead",
    "host",
    "host_copies",
)

_WEIGHTS_PER_LAYER = 4
"""Of linear layers; biases go with them in small kernels, and norms are counted beside."""


class StepTime(NamedTuple):
    """One step at full batch size."""

    step_seconds: float
    parts: Mapping[str, float]
    """Seconds of the critical path by part (PARTS); they add up to step_seconds."""
    model_flops: float
    """Of the step, over all ranks, as planning.flops counts them."""
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    """Against the device's peak of the job's dtype, also where products are in FP8; None where that is unknown."""


def estimate_time(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> StepTime:
    """Seconds of a step of a job with a vocabulary of `padded_vocab` rows on a device. A job that leaves CUDA graphs
    open has none here: `kernel_selection.auto_values` settles that.
    """
    return estimate_with(job, padded_vocab, kernels_of(job, layers), device)


def step_timeline(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> Timeline:
    """When each stage of a job does which pass of a step, in seconds."""
    setting = setting_of(job, padded_vocab, kernels_of(job, layers), device)
    stages = _stages(setting, _trained_in_stages(job, padded_vocab))
    forward, backward, _, transfer = _pass_seconds(setting, stages)
    return timeline(forward, backward, job.num_micro_batches, transfer)


def estimate_with(job: JobSpec, padded_vocab: int, kernels: Kernels, device: Device) -> StepTime:
    """The same for a layer backend that is described by its kernels."""
    parts = _parts(setting_of(job, padded_vocab, kernels, device))
    seconds = sum(parts.values())
    tokens = job.global_batch_size * job.tokens_per_sample
    flops = model_flops(job, tokens, padded_vocab)
    per_gpu = flops / seconds / job.world_size
    peak = None if device.is_cpu else device.peak_flops.get(job.precision.dtype)
    return StepTime(
        step_seconds=seconds,
        parts=parts,
        model_flops=flops,
        tokens_per_second_per_gpu=tokens / seconds / job.world_size,
        tflops_per_gpu=per_gpu / 1e12,
        mfu=per_gpu / peak if peak else None,
    )


def faster_with_graphs(job: JobSpec, padded_vocab: int, layers: Layers, device: Device) -> bool:
    """Whether a job is faster where its passes are CUDA graphs. One replica loses nothing by them, and a slow host is
    reckoned with; several could have reduced gradients meanwhile. Shorter gaps between kernels are no reason: of a
    model whose GPU never waits for the host none was seen.
    """
    setting = setting_of(job, padded_vocab, kernels_of(job, layers), device)
    plain, captured = replace(setting, captured=False), replace(setting, captured=True)
    if job.data_parallel_size == 1:
        plain = replace(plain, host_slowness=device.fitted.host.slow_host)
    one, other = ({**_parts(each), "overhead": 0.0} for each in (captured, plain))
    return sum(one.values()) < sum(other.values())


def _parts(setting: Setting) -> Parts:
    """Seconds of a step by PARTS."""
    held = _trained_in_stages(setting.job, setting.padded_vocab)
    experts = trained_expert_parameters(setting.job, stage_expert_parameters(setting.job))
    stages = _stages(setting, held)
    parts = add(dict.fromkeys(PARTS, 0.0), _passes(setting, stages), _update(setting, held, experts))
    parts["data_parallel"] += data_parallel_seconds(setting, held, experts, stages)
    parts["overhead"] += _slowest_rank(setting) * sum(parts.values())
    return parts


def _trained_in_stages(job: JobSpec, padded_vocab: int) -> tuple[int, ...]:
    """Parameters that a rank of each pipeline stage trains."""
    return trained_parameters(job, stage_parameters(job, padded_vocab))


def _passes(setting: Setting, stages: list[list[Pass]]) -> Parts:
    """All forward and backward passes of a step, on the slowest stage, and what it waits for the others."""
    micro_batches = setting.job.num_micro_batches
    forward, backward, blocking, transfer = _pass_seconds(setting, stages)
    whole = pipeline_seconds(forward, backward, micro_batches, transfer)
    busy = [sum(ahead) + sum(back) for ahead, back in zip(forward, backward, strict=True)]
    slowest = busy.index(max(busy))
    parts = add(*(half for each in stages[slowest] for half in each))
    transfers = {"pipeline_transfer": 2 * len(stages[0]) * blocking}
    return add(scale(add(parts, transfers), micro_batches), {"bubble": max(whole - micro_batches * busy[slowest], 0.0)})


def _pass_seconds(
    setting: Setting, stages: list[list[Pass]]
) -> tuple[list[list[float]], list[list[float]], float, float]:
    """Seconds of a forward and of a backward pass of each chunk of each stage; of these the ones in which a pass waits
    for its send; and seconds from a pass to the next stage's.
    """
    count = len(stages[0])
    neighbours = pipeline_group(setting)
    sent = neighbours.send_seconds(setting.own_tokens * setting.model.hidden_size * setting.size)
    # 1F1B waits for each send and the receive that goes with it; the interleaved schedule computes meanwhile.
    waiting = setting.kernels.after_transfer if len(stages) > 1 else 0.0
    blocking = sent + waiting if count == 1 else neighbours.hidden(sent, sent)
    forward = [[sum(each.forward.values()) + blocking for each in stage] for stage in stages]
    backward = [[sum(each.backward.values()) + blocking for each in stage] for stage in stages]
    return forward, backward, blocking, 0.0 if count == 1 else sent


def _stages(setting: Setting, held: Sequence[int]) -> list[list[Pass]]:
    """The passes of each model chunk of each stage."""
    if setting.model.family.is_encoder_decoder:
        return _stages_of_halves(setting, held)
    in_stages = kinds_of_stages(setting.job)
    stages, count = len(in_stages), len(in_stages[0])
    layer_of = _mean_layer(setting)
    alike: dict[tuple[Kinds, float, bool, bool], Pass] = {}
    found = []
    for stage, in_chunks in enumerate(in_stages):
        accumulation = accumulation_seconds(setting, held[stage]) / count
        chunks = []
        for chunk, kinds in enumerate(in_chunks):
            first, last = stage == chunk == 0, (stage, chunk) == (stages - 1, count - 1)
            key = (kinds, accumulation, first, last)
            if key not in alike:  # all but the first and the last are, mostly
                alike[key] = _chunk(setting, layer_of(kinds), kinds, accumulation, first, last)
            chunks.append(alike[key])
        found.append(chunks)
    return found


def _chunk(setting: Setting, layer: Pass, kinds: Kinds, accumulation: float, first: bool, last: bool) -> Pass:
    """The passes of a chunk of such layers in the mean, which is the first or the last of all, or neither."""
    layers, shares = sum(count for _, count in kinds), shares_of(kinds)
    again = recomputed(setting, layer, layers, shares)
    plain = with_offloading(
        setting, Pass(scale(layer.forward, layers), add(scale(layer.backward, layers), again)), layers
    )
    each = [plain, *([embedding_pass(setting)] if first else []), *([output_pass(setting)] if last else [])]
    if last and (further := len(prediction_layers(setting.model))):  # each token is embedded, has scores and a loss
        each += [embedding_pass(setting), output_pass(setting)] * further
    images = images_of(setting) if first else None
    each += [images.passes] if images else []
    backward = add(*(one.backward for one in each), {"memory_bound": accumulation})
    whole = Pass(add(*(one.forward for one in each)), backward)
    more = images.starts if images else NOTHING
    return with_host(setting, whole, layers, shares, started_again(setting, layers, shares), more)


def _mean_layer(setting: Setting) -> Callable[[Kinds], Pass]:
    """The mean of layers, as a function of their kinds: each kind is looked at where there is one."""

    @cache
    def passes(layer: Layer) -> Pass:
        return adapted(setting, layer, _layer(setting, layer))

    def mean(kinds: Kinds) -> Pass:
        if len(kinds) < 2:
            return passes(kinds[0][0]) if kinds else Pass({}, {})
        total = sum(count for _, count in kinds)
        return _blend((passes(layer), count / total) for layer, count in kinds)

    return mean


def _layer(setting: Setting, layer: Layer) -> Pass:
    """One layer, as the mean over those whose products are quantized and those whose are not."""
    fast, narrow = layer_pass(setting, layer), setting.job.precision.quantization
    share = narrow.share_of_layers(setting.model.num_layers) if narrow is not None and setting.quantizes else 1.0
    if share == 1.0:
        return fast
    return _blend([(layer_pass(replace(setting, products=setting.dtype), layer), 1 - share), (fast, share)])


def _blend(shares: Iterable[tuple[Pass, float]]) -> Pass:
    """The mean of passes, each with its share."""
    each = [[scale(parts, share) for parts in one] for one, share in shares]
    return Pass(*(add(*parts) for parts in zip(*each, strict=True)))


def _stages_of_halves(setting: Setting, held: Sequence[int]) -> list[list[Pass]]:
    """The passes of a T5's stages, each one chunk."""
    job, settings = setting.job, settings_of_halves(setting)
    layer_of = {half: half_layer_pass(half, settings) for half in HALVES}
    launches = setting.device.fitted.encoder_decoder.launches
    shares = shares_of(kinds_of(layers(settings["encoder"].model)))
    stages = []
    for stage, parameters_held in enumerate(held):
        each = [embedding_pass(setting)] if stage == 0 else []
        started = again = 0.0
        for half, count in halves_of_stage(job, stage).items():
            layer = layer_of[half]
            back = add(scale(layer.backward, count), recomputed(setting, layer, count, shares))
            each.append(Pass(scale(layer.forward, count), back))
            started += count * launches[half]
            again += started_again(setting, count, shares) * launches[half]
        each += [output_pass(settings["decoder"])] if stage == len(held) - 1 else []
        accumulation = {"memory_bound": accumulation_seconds(setting, parameters_held)}
        whole = Pass(add(*(one.forward for one in each)), add(*(one.backward for one in each), accumulation))
        stages.append([with_host(setting, whole, started, shares, again)])
    return stages


def _update(setting: Setting, held: Sequence[int], experts: tuple[int, ...]) -> Parts:
    """The optimizer on the fullest stage, and what of a step is neither."""
    device, stages = setting.device, layers_of_chunks(setting.model.num_layers, setting.job.parallelism)
    model = setting.model
    both = _WEIGHTS_PER_LAYER + model.norms_of_a_layer  # of a layer with attention and an MLP
    each = tensors_of_adapters(setting) if model.has_adapters else both * model.family.residual_branches // 2
    in_stages = [sum(stage) for stage in stages]
    in_stages[0] += trained_layers(setting)
    in_stages[-1] += len(prediction_layers(model))
    tensors = each * max(in_stages)
    launching = tensors * setting.kernels.optimizer_launches * device.efficiency.launch
    copies = setting.job.sharded_copies
    replicas, of_experts = setting.job.weight_replicas // copies, max(setting.job.expert_replicas // copies, 1)
    updates = [
        optimizer_seconds(setting, count - routed, replicas) + optimizer_seconds(setting, routed, of_experts)
        for count, routed in zip(held, experts, strict=True)
    ]
    return {
        "optimizer": max(updates) + launching + muon_seconds(setting),
        "host_copies": max(map(partial(waiting_for_state, setting), held, experts, updates)),
        "overhead": 0.0 if device.is_cpu else device.fitted.step.overhead_seconds,
    }


def _slowest_rank(setting: Setting) -> float:
    """How much longer the slowest of all ranks takes than one: the largest of n normal draws."""
    return setting.device.fitted.step.gpu_spread * math.sqrt(2 * math.log(setting.job.world_size))
