"""The encoder of a decoder's images as a model of its own, which the models of time and memory know already."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec

CHANNELS = 3
"""Of a pixel."""


@lru_cache
def encoder_model(vision: VisionSpec) -> ModelSpec:
    """Its layers as a BERT's whose sequences are images. What stands before them and behind them is not said."""
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


def encoder_job(job: JobSpec, vision: VisionSpec) -> JobSpec:
    """The job of a rank of the first stage, as far as images go: split over the same tensor-parallel ranks, but whole
    between their regions and on one stage. Full recomputation keeps each layer's input.
    """
    degrees = job.parallelism
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
        "model": encoder_model(vision),
        "parallelism": degrees.model_copy(update=layout),
        "batch": job.batch.model_copy(
            update={"micro_batch_size": job.batch.micro_batch_size * vision.images_per_sequence}
        ),
    }
    if job.runtime.recompute_granularity == "full":
        each = {"recompute_method": "uniform", "recompute_num_layers": 1, "distribute_saved_activations": False}
        changes["runtime"] = job.runtime.model_copy(update=each)
    return job.model_copy(update=changes)
