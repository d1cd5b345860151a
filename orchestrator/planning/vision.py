"""The encoder of a decoder's images as a model of its own, which the models of time and memory know already."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from orchestrator.kernel_selection.fused_kernels import rotates_projection
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers
from orchestrator.spec.vision import VisionSpec

CHANNELS = 3
"""Of a pixel."""


@lru_cache
def encoder_model(vision: VisionSpec) -> ModelSpec:
    """Its layers as a BERT's whose sequences are images. What stands before them and behind them is not said."""
    if vision.kind.keeps_shape:
        return _native_model(vision, vision.num_layers, vision.positions)
    return ModelSpec(
        architecture="bert",
        bert_binary_head=False,
        num_layers=vision.num_layers,
        hidden_size=vision.hidden_size,
        num_attention_heads=vision.num_attention_heads,
        ffn_hidden_size=vision.ffn_size,
        seq_length=vision.positions,
        position_embedding_type="none",
        norm_epsilon=vision.norm_epsilon,
        # quick_gelu is three kernels in each pass, and keeps one tensor alone as well.
        activation="gelu" if vision.activation == "gelu" else "gelu_tanh",
    )


@lru_cache
def encoder_models(vision: VisionSpec) -> tuple[ModelSpec, ...]:
    """The same, a model for the layers whose patches attend to those of an image, and one, whose sequences are windows,
    for those that attend within these.
    """
    if not vision.kind.keeps_shape:
        return (encoder_model(vision),)
    full = sum(layer < vision.num_layers for layer in set(vision.native.full_attention_layers))
    window = min(vision.native.window_patches(vision.patch_size), vision.positions)
    lengths = {vision.positions: full, window: vision.num_layers - full}
    if window == vision.positions:
        lengths = {window: vision.num_layers}
    return tuple(_native_model(vision, layers, length) for length, layers in lengths.items() if layers)


def _native_model(vision: VisionSpec, layers: int, length: int) -> ModelSpec:
    return ModelSpec(
        architecture="bert",
        bert_binary_head=False,
        num_layers=layers,
        hidden_size=vision.hidden_size,
        num_attention_heads=vision.num_attention_heads,
        ffn_hidden_size=vision.ffn_size,
        seq_length=length,
        position_embedding_type="rope",
        normalization="RMSNorm",
        norm_epsilon=vision.norm_epsilon,
        activation="swiglu",
    )


def projector_widths(model: ModelSpec) -> tuple[int, int, int]:
    """Inputs of the first of the two matrices behind the encoder, what is between them, and outputs of the second."""
    vision, h = model.image_encoder, model.hidden_size
    group = vision.hidden_size * vision.merge_size**2
    return (group, group, h) if vision.kind.keeps_shape else (vision.hidden_size, h, h)


def encoder_job(job: JobSpec, vision: VisionSpec, model: ModelSpec | None = None) -> JobSpec:
    """The job of a rank of the first stage, as far as images go: split over the same tensor-parallel ranks, but whole
    between their regions and on one stage. Full recomputation keeps each layer's input. `model`: of `encoder_models`
    the one that it is of, `encoder_model` by default.
    """
    degrees, own = job.parallelism, model or encoder_model(vision)
    sequences = vision.images_per_sequence * -(-vision.positions // own.seq_length)
    layout: dict[str, Any] = {
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "pipeline_model_parallel_layout": None,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "context_parallel_size": 1,
        "sequence_parallel": False,
        "data_parallel_size": job.world_size // degrees.tensor_model_parallel_size,  # on as many processes
    }
    changes: dict[str, Any] = {
        "model": own,
        "parallelism": degrees.model_copy(update=layout),
        "batch": job.batch.model_copy(update={"micro_batch_size": job.batch.micro_batch_size * sequences}),
    }
    if job.runtime.recompute_granularity == "full":
        each = {"recompute_method": "uniform", "recompute_num_layers": 1, "distribute_saved_activations": False}
        changes["runtime"] = job.runtime.model_copy(update=each)
    return job.model_copy(update=changes)


def rotates_images(job: JobSpec, layers: Layers) -> bool:
    """Whether a kernel of our own rotates queries and keys of a job's encoder on a GPU, where it has one that does."""
    return job.model.has_vision and rotates_projection(encoder_job(job, job.model.image_encoder), layers)
