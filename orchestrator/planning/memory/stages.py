"""The memory of every pipeline stage: what lies there all the time, and the fullest moment of a step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import mul
from typing import NamedTuple

from orchestrator.kernel_selection.chunked_loss import tokens_of_chunk
from orchestrator.kernel_selection.fused_kernels import adds_in_products
from orchestrator.models.blocks.base import FP32, RankShape, norm_statistics
from orchestrator.models.blocks.grouped_query_attention.memory import rotary_width
from orchestrator.models.layers import blocks_in_layers, prediction_layers
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.encoder_decoder import half_job
from orchestrator.planning.layout import pipeline
from orchestrator.planning.layout.chunk_layers import kinds_of
from orchestrator.planning.memory.chunk_activations import Activations, chunks_of_stages
from orchestrator.planning.memory.layer_activations import core_kernels, rank_shape, saved_by_layer
from orchestrator.planning.memory.non_torch_memory import MIB, NonTorchMemory, outside_the_allocator
from orchestrator.planning.memory.optimizer_state import optimizer_state, shard
from orchestrator.planning.memory.quantization import copies_of_weights
from orchestrator.planning.memory.sharded_weights import whole_weights
from orchestrator.planning.memory.variants import capped_logits, masks
from orchestrator.planning.memory.vision import with_images
from orchestrator.planning.narrow_moments import ROUND_ELEMENTS as AT_A_TIME
from orchestrator.planning.newton_schulz import ROUND_ELEMENTS
from orchestrator.planning.parameters import stage_expert_parameters, stage_parameters
from orchestrator.planning.parameters.matrices import matrices_of_stages, stage_matrix_parameters
from orchestrator.planning.parameters.trainable import trained_expert_parameters, trained_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

_CUBLAS_WORKSPACE = 32 * MIB
"""What torch gives each cuBLAS handle on Hopper and later (8 MiB before); the forward and the backward thread have one
each, and Transformer Engine one of its own."""
_ROUND_BYTES = 20
"""Of an element of a round of Muon's: bf16 of what is sent, received, joined, stacked, divided by its norm, two
products with its transpose, the result, and what is sent back and received."""
_COUNTERS = 32
"""Bytes per token of indices, labels, masks and losses of a micro-batch in flight."""


class StageMemory(NamedTuple):
    """Any rank of one pipeline stage; its tensor- and data-parallel ranks hold the same."""

    pp: int
    parts: Mapping[str, int]
    """Bytes by part at the fullest moment; they add up to `peak_bytes`."""
    peak_bytes: int
    """What torch.cuda.max_memory_allocated reports."""
    device_bytes: int
    """With CUDA's context, NCCL's buffers and the allocator's fragmentation: what must fit into the GPU."""
    moment: str
    """When that is: "loss", "backward", "output layer", "embedding", "optimizer" or "start"."""


class Memory(NamedTuple):
    """The memory of a job, per pipeline stage."""

    stages: tuple[StageMemory, ...]
    peak_bytes: int
    """Of the fullest stage."""
    device_bytes: int
    host_bytes: int = 0
    """Of the host's memory for the optimizer's state of a rank, on the stage that has most there."""


def estimate_memory(job: JobSpec, padded_vocab: int, layers: Layers) -> Memory:
    """Predict the memory of each stage for a vocabulary of `padded_vocab` rows. Pure arithmetic, well under 1 ms."""
    degrees = job.parallelism
    sizes = rank_shape(job)
    of_blocks = sum(block.buffers(job.model, sizes) for block in blocks_in_layers(job.model))
    in_passes = with_images(job, layers, chunks_of_stages(job, sizes, layers))
    predicted = rank_shape(half_job(job, "decoder")) if job.model.family.is_encoder_decoder else sizes
    counts, experts = stage_parameters(job, padded_vocab), stage_expert_parameters(job)
    trained = trained_parameters(job, counts)
    trained_experts = trained_expert_parameters(job, experts)
    states = [optimizer_state(job, *each) for each in zip(trained, trained_experts, strict=True)]
    matrices = stage_matrix_parameters(job)
    outside = outside_the_allocator(job, layers)
    stages = []
    for pp, (count, chunks) in enumerate(zip(counts, in_passes, strict=True)):
        in_flight = _in_flight(pp, chunks, job, sizes.stream)
        first, last = pp == 0, pp == degrees.pipeline_model_parallel_size - 1
        lasting = _lasting(job, count, sizes, layers, last)
        gradient = FP32 if job.precision.grad_reduce_in_fp32 else sizes.width
        lasting |= {"gradients": trained[pp] * gradient, "optimizer": states[pp].on_gpu}
        whole = whole_weights(job, count) if job.is_fully_sharded else None
        if whole is not None:
            lasting |= {
                "weights": shard(job, count, experts[pp], sizes.width),
                "gradients": shard(job, count, experts[pp], gradient),
            }
        lasting["buffers"] += of_blocks + in_flight.between * sizes.stream
        lasting["optimizer"] -= shard(job, *matrices[pp], FP32)  # they have one moment
        if (narrow := job.precision.quantization) and (copies := copies_of_weights(job, layers, pp)):
            lasting[f"{narrow.field}_weights"] = copies
        moments = _moments(
            job, padded_vocab, layers, sizes, predicted, chunks, in_flight, count, experts[pp], lasting, first, last
        )
        if whole is not None:
            kept = chunks[0].saved // whole.num_layers
            moments = [each for name, held in moments for each in whole.moments(name, held, kept)]
        moment, parts = max(moments, key=lambda each: sum(each[1].values()))
        peak = sum(parts.values())
        device_bytes = outside.device_bytes(parts)
        if job.runtime.cuda_graphs is True:
            device_bytes = max(device_bytes, _beside_a_graph(moments, chunks[0].backward, outside))
        stages.append(StageMemory(pp, parts, peak, device_bytes, moment))
    fullest = max(stages, key=lambda stage: stage.device_bytes)
    on_host = max(state.on_host for state in states)
    return Memory(tuple(stages), max(stage.peak_bytes for stage in stages), fullest.device_bytes, on_host)


def _beside_a_graph(moments: list[tuple[str, dict[str, int]]], of_a_layer: int, outside: NonTorchMemory) -> int:
    """Bytes on the device where what the passes take at their fullest stays the graph's: beside it the optimizer takes
    more, and an evaluation has logits, a layer's tensors and FP8 of the weights in one order; while it was captured as
    much was reserved.
    """
    passes = [held for name, held in moments if name not in ("start", "optimizer")]
    [update] = [held["temporary"] for name, held in moments if name == "optimizer"]
    logits = max(held.get("logits", 0) for held in passes)
    fullest = max(passes, key=lambda held: sum(held.values()))
    of_weights = fullest.get("fp8_weights", 0) // 2
    return outside.device_bytes(fullest) + max(update, logits + of_a_layer + of_weights)


@cache
def _most_in_flight(stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[tuple[int, ...], ...]:
    return pipeline.in_flight(stage, stages, chunks, micro_batches)


class _InFlight(NamedTuple):
    """Passes of each chunk whose activations a stage holds when they are the most bytes."""

    ever: tuple[int, ...]
    at_the_loss: tuple[int, ...]
    """With one of the last chunk among them."""
    between: int
    """How many tensors that stages send each other are held then, beside the inputs of these passes."""


def _in_flight(stage: int, chunks: tuple[Activations, ...], job: JobSpec, stream: int) -> _InFlight:
    """The warm-up decides, so more micro-batches change nothing. `stream`: bytes of a tensor between stages."""
    stages = job.parallelism.pipeline_model_parallel_size
    fullest = _most_in_flight(stage, stages, len(chunks), min(job.num_micro_batches, 3 * stages))
    if len(fullest) == 1:
        [held] = fullest
        return _InFlight(held, held, _between(stage, stages, len(chunks), is_first=True))
    between = dict.fromkeys(fullest, _between(stage, stages, len(chunks), is_first=False))
    between[fullest[0]] = _between(stage, stages, len(chunks), is_first=True)
    each = [chunk.saved for chunk in chunks]
    if min(each) == max(each):  # as many passes hold as much then, whichever they are
        by_bytes = sorted(fullest, key=between.__getitem__, reverse=True)
    else:
        by_bytes = sorted(fullest, key=lambda held: sum(map(mul, each, held)) + between[held] * stream, reverse=True)
    at_the_loss = next((held for held in by_bytes if held[-1] > 0), by_bytes[0])
    return _InFlight(by_bytes[0], at_the_loss, between[by_bytes[0]])


def _between(stage: int, stages: int, chunks: int, *, is_first: bool) -> int:
    """The schedule keeps the gradient that it sent last; interleaved, also an output on its way, the next input, and on
    the last stage an input that was used. `is_first`: before any backward pass, when the first stage's next input is
    tokens.
    """
    if chunks == 1:
        return 0 if stage == 0 else 1
    if stage == 0:
        return 1 if is_first else 3
    return 4 if stage == stages - 1 else 3


def _saved(chunks: tuple[Activations, ...], held: tuple[int, ...]) -> int:
    return sum(each.saved * count for each, count in zip(chunks, held, strict=True))


def _lasting(job: JobSpec, count: int, sizes: RankShape, layers: Layers, last: bool) -> dict[str, int]:
    """What is there at all times, by part, whatever is trained. `count`: parameters of the rank."""
    buffers = _CUBLAS_WORKSPACE * (3 if layers == "transformer_engine" else 2)
    buffers += masks(job, sizes, layers)
    if sizes.sequence_parallel and (layers == "torch" or last):
        # megatron-core's linears gather their input into one buffer: that of a further token's is twice as wide.
        buffers += sizes.whole_stream * (2 if last and prediction_layers(job.model) else 1)
    if job.model.position_embedding_type == "rope":
        chunks = job.parallelism.num_model_chunks
        buffers += chunks * sizes.positions * rotary_width(job.model) * FP32  # the angles, which each chunk keeps
    return {"weights": count * sizes.width, "gradients": 0, "optimizer": 0, "buffers": buffers}


def offloaded_bytes(job: JobSpec, layers: Layers) -> int:
    """What a pass over one micro-batch moves to the host's memory: of each layer the mean."""
    count, sizes = job.runtime.cpu_offloading_num_layers or 0, rank_shape(job)
    if not count:
        return 0
    kinds, kernels = kinds_of(layers_of(job.model)), core_kernels(job, layers, is_recomputed=False)
    whole = sum(each * saved_by_layer(job, layer, sizes, kernels) for layer, each in kinds)
    return whole * count // job.model.num_layers


def _moments(
    job: JobSpec,
    padded_vocab: int,
    layers: Layers,
    sizes: RankShape,
    predicted: RankShape,
    chunks: tuple[Activations, ...],
    in_flight: _InFlight,
    count: int,
    experts: int,
    lasting: dict[str, int],
    first: bool,
    last: bool,
) -> list[tuple[str, dict[str, int]]]:
    """What is held at each moment that can be the fullest, by part. `predicted`: sizes of the tokens with a loss."""
    model, degrees = job.model, job.parallelism
    tp, width = degrees.tensor_model_parallel_size, sizes.width
    vocab = padded_vocab // tp
    table = vocab * sizes.hidden * width
    held = sum(in_flight.ever)
    counters = held * sizes.tokens * _COUNTERS
    post_ln = model.transformer_block_type == "post_ln"
    ends = 0
    if first and model.hidden_dropout > 0:
        ends += held * sizes.own_tokens * sizes.hidden  # the embedding's mask
    if first and post_ln:  # the input of the embedding's norm
        ends += held * (sizes.stream + sizes.own_tokens * norm_statistics(job.model))
    passes = _saved(chunks, in_flight.ever) + ends + counters
    backward = max(each.backward for each in chunks)
    if last:  # gradients of the hidden states that are still to be reached
        backward += max(len(prediction_layers(model)) - 1, 0) * sizes.stream
    if last and in_flight.ever[-1] == 0:
        # In an earlier chunk's backward pass: the gradient and the next input, received, and the output on its way.
        backward += 3 * sizes.stream
    moments: list[tuple[str, dict[str, int]]] = [
        ("backward", {**lasting, "activations": passes, "temporary": backward}),
        ("start", _start(job, padded_vocab, count, lasting, first or last)),
        ("optimizer", {**lasting, "temporary": _update(job, count, experts)}),
    ]
    if last and not job.has_task:
        norm = 2 * predicted.stream + predicted.own_tokens * norm_statistics(job.model) if not post_ln else sizes.stream
        if model.family.is_masked_lm:  # its head's dense layer, activation and norm
            norm += 3 * predicted.stream + predicted.own_tokens * norm_statistics(job.model)
        at_the_loss = _saved(chunks, in_flight.at_the_loss) + ends + counters + norm
        moments += _last_moments(job, {**lasting, "activations": at_the_loss}, layers, sizes, vocab)
    if first:
        others = passes - chunks[0].saved + chunks[0].images
        moments.append(("embedding", {**lasting, "activations": others, "temporary": table + 2 * sizes.whole_stream}))
    return moments


def _last_moments(
    job: JobSpec, held: dict[str, int], layers: Layers, sizes: RankShape, vocab: int
) -> list[tuple[str, dict[str, int]]]:
    """In the backward pass of the loss and of the output layer, whose table has `vocab` rows on this rank."""
    width, table = sizes.width, vocab * sizes.hidden * sizes.width
    losses = 1 + len(prediction_layers(job.model))  # all are computed before the first backward pass
    if job.runtime.fused_linear_cross_entropy:
        # Of a chunk its logits, then their gradient; of all the gathered input and its gradient; of the table a chunk's
        # gradient, where the product does not add it to the sum, which is the buffer if that is in fp32. An empty table
        # ends the pass.
        chunk = min(sizes.tokens, tokens_of_chunk(sizes.tokens, vocab)) * vocab * width
        in_fp32 = job.precision.grad_reduce_in_fp32 or width == FP32
        of_table = max(table - chunk, 0) if adds_in_products(job) else table
        other = (1 + losses) * sizes.whole_stream + of_table + (0 if in_fp32 else vocab * sizes.hidden * FP32)
        return [("loss", {**held, "logits": chunk, "temporary": other})]
    # The gradient takes the logits' place. A cap keeps its tangents, and makes a gradient of the logits before it.
    logits, capped = losses * sizes.tokens * vocab * width, losses * capped_logits(job, sizes, vocab)
    linear = sizes.whole_stream + table + (sizes.stream if sizes.sequence_parallel else 0)
    return [
        ("loss", {**held, "logits": logits + 2 * capped, "temporary": 0}),
        ("output layer", {**held, "logits": logits, "temporary": linear}),
    ]


def _update(job: JobSpec, count: int, experts: int) -> int:
    """What the optimizer takes: fp32 copies of gradients that are not fp32, and what it has at a time of matrices with
    Muon, or of moments that are not fp32.
    """
    in_fp32 = job.precision.grad_reduce_in_fp32 or job.precision.dtype == "fp32"
    own = shard(job, count, experts, 1)
    widened = job.optimizer.narrow_moments * FP32 * min(own, AT_A_TIME)
    return _orthogonalized(job) + (0 if in_fp32 else own * FP32) + widened


def _orthogonalized(job: JobSpec) -> int:
    """Of a round of Muon's: no more than all matrices that a rank has a part in, and no less than the largest one."""
    if not job.optimizer.kind.orthogonalizes:
        return 0
    stages = matrices_of_stages(job)
    largest = max((each.inputs * each.outputs for matrices in stages for each in matrices), default=0)
    most = max(count for count, _ in stage_matrix_parameters(job))
    return max(largest, min(most, ROUND_ELEMENTS)) * _ROUND_BYTES


def _start(job: JobSpec, padded_vocab: int, count: int, lasting: dict[str, int], has_table: bool) -> dict[str, int]:
    """While the weights move into the buffer they are gathered from, they exist twice; before, each is drawn whole."""
    weights, gradients = lasting["weights"], lasting["gradients"]
    drawn = (padded_vocab if has_table else job.model.ffn_size) * job.model.hidden_size * FP32
    sharded = job.parallelism.use_distributed_optimizer
    moving = {"weights": weights, "gradients": gradients, "temporary": weights if sharded else 0}
    drawing = {"weights": weights, "gradients": 0, "temporary": drawn}
    return max(moving, drawing, key=lambda parts: sum(parts.values()))
