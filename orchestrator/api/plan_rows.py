"""What a job would do and take, in a few lines."""

from __future__ import annotations

import shlex

from orchestrator.conversion.exportability import exported_as
from orchestrator.kernel_selection.layers import WORTH
from orchestrator.models.layers import layer_kinds
from orchestrator.planning.checks.partition_limits import partition_of
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.hardware.devices import computing_unit
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.host_bound import ways_to_fill
from orchestrator.quantities import amount, disk_size, memory_size, short_count, spec_duration, time_span
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.rules.kernels.cuda_graphs import GRAPHS, obstacles

WAITING = 0.1
"""Share of a step that a GPU may wait for its host before it is worth a word."""


def _shape(model: ModelSpec) -> str:
    """Layers, width and length, of both halves of a T5."""
    layers, length = str(model.num_layers), str(model.seq_length)
    if model.family.is_encoder_decoder:
        layers = f"{model.encoder_layers} + {model.decoder_layers}"
        length = f"{model.seq_length} + {model.sample_length - model.seq_length}"
    kinds = layer_kinds(model)
    shown = f" ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})" if kinds else ""
    return f"{layers} layers{shown}, hidden {model.hidden_size}, sequence {length}"


def _images(plan: Plan) -> list[tuple[str, str]]:
    """How many a sequence may have, and what encodes them."""
    if not plan.job.model.has_vision:
        return []
    vision = plan.job.model.image_encoder
    count = f"{vision.images_per_sequence} x {vision.tokens_per_image} tokens to a sequence"
    encoder = (
        f"an encoder of {vision.num_layers} layers, hidden {vision.hidden_size}{', frozen' if vision.freeze else ''}"
    )
    held = f"{short_count(plan.parameters.vision)} parameters on the first stage"
    return [("images", f"{count}, by {encoder}; {held}")]


def describe(plan: Plan) -> list[tuple[str, str]]:
    """What the job would do, a line for each aspect."""
    job, batch = plan.job, plan.batch
    ramp = f", ramped up from {batch.sizes[0]}" if len(batch.sizes) > 1 else ""
    return [
        (
            "model",
            f"{job.model.architecture}, {short_count(plan.parameters.total)} parameters, {_shape(job.model)}",
        ),
        *_images(plan),
        ("layout", layout_line(plan)),
        (
            "batch",
            f"{job.global_batch_size} = micro {job.batch.micro_batch_size} x {job.num_micro_batches} micro-batches x "
            f"DP {job.data_parallel_size}{ramp}",
        ),
        ("length", f"{batch.train_iters:,} steps, {short_count(batch.train_tokens)} tokens"),
        ("data", data_line(plan)),
        ("exports as", exported_as(job, runs_dir_of(job, None))),
    ]


def forecast_rows(plan: Plan, forecast: Forecast) -> list[tuple[str, str]]:
    """What the job would take, a line for each aspect."""
    device, time = forecast.device, forecast.time
    of_which = " of the bf16 peak" if forecast.quantizes else ""
    mfu = f", {time.mfu:.1%} MFU{of_which}" if time.mfu is not None else ""
    in_full = ""
    if plan.full_step_flops is not None:
        in_full = (
            f" (attention in full: {amount(time.tflops_per_gpu * plan.full_step_flops / plan.step_flops)} TFLOP/s)"
        )
    processor = computing_unit(device.name)
    chosen = f"{device.name} ({forecast.choice.how}), {forecast.layers} layers ({forecast.layers_from})"
    energy = "" if device.is_cpu else f", {amount(forecast.energy_kwh)} kWh at full power"
    also = {
        "FlashAttention 4": forecast.flash_attention,
        "tensor parallelism overlapped": forecast.tp_comm_overlap,
        "CUDA graphs": forecast.cuda_graphs,
    }
    return [
        ("planned for", ", ".join([chosen, *(name for name, used in also.items() if used)])),
        ("memory", _memory_row(forecast)),
        (
            "speed",
            f"{time_span(time.step_seconds)} per step, "
            f"{amount(time.tokens_per_second_per_gpu)} tokens/s per {processor}, "
            f"{amount(time.tflops_per_gpu)} TFLOP/s per {processor}{mfu}{in_full}",
        ),
        *_bound_by_host(plan, forecast),
        *_bound_by_a_stage(plan.job, forecast),
        ("takes", f"{time_span(forecast.training_seconds)}, {amount(forecast.gpu_hours)} {processor} hours{energy}"),
        ("checkpoint", f"{disk_size(forecast.checkpoint_bytes)} each"),
    ]


def _bound_by_host(plan: Plan, forecast: Forecast) -> list[tuple[str, str]]:
    share = forecast.time.parts["host"] / forecast.time.step_seconds
    if share < WAITING:
        return _near_the_hosts_limit(forecast)
    waits = f"{share:.0%} of a step the GPU waits for it to launch kernels"
    refused = GRAPHS if plan.job.runtime.cuda_graphs is False else None
    field = next((name for name, _ in obstacles(plan.job)), refused)
    graphs = [] if field is None else [f"{field} rules out a CUDA graph, which would spare it"]
    said = "; ".join([waits, *ways_to_fill(plan, forecast), *graphs])
    return [("bound by", f"the host: {said}{_torchs_layers(forecast)}")]


def _near_the_hosts_limit(forecast: Forecast) -> list[tuple[str, str]]:
    slow, planned = forecast.slow_host_seconds, forecast.time.step_seconds
    if slow is None or slow < (1 + WAITING) * planned:
        return []
    return [
        (
            "host",
            f"on a host half as fast as planned, which is common, a step takes {slow / planned - 1:.0%} more: "
            "orchestrator calibrate measures yours; larger micro-batches need less host time",
        )
    ]


def _bound_by_a_stage(job: JobSpec, forecast: Forecast) -> list[tuple[str, str]]:
    if forecast.balanced is None:
        return []
    saved = 1 - forecast.balanced.step_seconds / forecast.time.step_seconds
    instead = f"a step takes {saved:.1%} less with --set {shlex.quote(forecast.balanced.split.override)}"
    held = layers_of_chunks(job.model.num_layers, forecast.balanced.split.of(job).parallelism)
    is_first = sum(held[0]) * len(held) < job.model.num_layers
    first, last = "the first stage, which encodes images", "the last stage, which has the output layer"
    return [("bound by", f"{first if is_first else last} as well; {instead}")]


def _torchs_layers(forecast: Forecast) -> str:
    saved = forecast.saved_by_torch
    return "" if saved < WORTH else f"; a step takes {saved:.0%} less with --set runtime.layers=torch"


def _memory_row(forecast: Forecast) -> str:
    memory, there = forecast.memory, forecast.device.memory_bytes
    peak = f"{memory_size(memory.peak_bytes)} at most on a rank"
    on_host = f"; {memory_size(memory.host_bytes)} of optimizer state in host memory" if memory.host_bytes else ""
    if there is None:
        return peak + on_host
    with_cuda = f"{memory_size(memory.device_bytes)} of {memory_size(there)} with CUDA and NCCL: {forecast.fit}"
    return f"{peak}; {with_cuda}{on_host}"


def layout_line(plan: Plan) -> str:
    """`8 processes on 1 node = TP 2 x PP 2 x DP 2, sequence parallel`."""
    layout, degrees = plan.topology, plan.job.parallelism
    sizes = {
        "TP": layout.tensor_model_parallel_size,
        "CP": layout.context_parallel_size,
        "PP": layout.pipeline_model_parallel_size,
        "DP": layout.data_parallel_size,
    }
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if name != "CP" or size > 1)
    extras = [
        f"{layout.virtual_pipeline_model_parallel_size} chunks per stage" if degrees.num_model_chunks > 1 else "",
        f"EP {layout.expert_model_parallel_size}" if layout.expert_model_parallel_size > 1 else "",
        "sequence parallel" if degrees.uses_sequence_parallel else "",
        _sharding(plan.job),
    ]
    processes = f"{layout.world_size} process{'es' if layout.world_size > 1 else ''}"
    nodes = f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}"
    return ", ".join([f"{processes} on {nodes} = {product}", *filter(None, extras)])


def _sharding(job: JobSpec) -> str:
    if job.is_fully_sharded:
        return f"FSDP over {job.parallelism.fsdp}" if job.sharded_copies > 1 else "FSDP"
    return "distributed optimizer" if job.parallelism.use_distributed_optimizer and job.weight_replicas > 1 else ""


def cluster_line(job: JobSpec, cluster: ClusterSpec) -> str:
    """`alps, partition gpu: 2 of 16 nodes, 8 of 8 GPUs on each, 4h of 1d`."""
    partition = partition_of(job, cluster)
    most = cluster.partitions.get(partition or "")
    time = job.launch.time or cluster.time
    gpus, limit = (most.gpus_per_node, most.time_limit) if most else (None, None)
    asked = [
        _share(job.launch.nodes, most.nodes if most else None, "nodes"),
        "no GPUs" if job.runtime.device == "cpu" else _share(job.processes_per_node, gpus, "GPUs on each"),
        _share(spec_duration(time) if time else None, spec_duration(limit) if limit else None, ""),
    ]
    where = f"{cluster.name}, partition {partition}" if partition else cluster.name
    return f"{where}: {', '.join(filter(None, asked))}"


def _share(wanted: object, most: object, unit: str) -> str:
    if wanted is None:
        return ""
    return f"{wanted} of {most} {unit}".rstrip() if most is not None else f"{wanted} {unit}".rstrip()


def data_line(plan: Plan) -> str:
    """Whether the data is there, and how often it would be read."""
    if plan.job.data.random_tokens:
        return "random tokens"
    if plan.job.has_task:
        return f"the examples of {plan.job.labelled_task.name}"
    made_first = sum(each.is_to_be_made for each in plan.data_sets)
    missing = sum(each.header is None for each in plan.data_sets) - made_first
    if missing or made_first:
        parts = [f"{missing} of {len(plan.data_sets)} sources are not on this machine"] if missing else []
        parts += [making_line(made_first)] if made_first else []
        return "; ".join(parts)
    held = sum(source.tokens_held or 0 for source in plan.sources)
    known = [source.epochs for source in plan.sources if source.epochs is not None]
    epochs = f", at most {max(known):.2f} epochs of one" if known else ""
    sources = f"{len(plan.sources)} source{'s' if len(plan.sources) > 1 else ''}"
    return f"{sources}, {short_count(held)} training tokens{epochs}"


def making_line(count: int) -> str:
    """`2 sources will be made from text first`."""
    return f"{count} source{'s' if count > 1 else ''} will be made from text first"
