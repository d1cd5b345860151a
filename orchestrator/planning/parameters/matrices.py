"""The matrices that Muon orthogonalises, and how many of a job's parameters they are."""

from __future__ import annotations

from collections import Counter

from orchestrator.models.blocks.base import Degrees, Matrix
from orchestrator.models.blocks.grouped_query_attention.parameters import cross_matrices
from orchestrator.models.layers import Layer, layers, matrices_of
from orchestrator.planning.layout.chunk_layers import kinds_of_stages
from orchestrator.planning.parameters.layer import degrees_of
from orchestrator.planning.parameters.vision import projector_matrices
from orchestrator.planning.vision import encoder_model
from orchestrator.spec.encoder_decoder import HALVES, layers_of_stage
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec

Matrices = Counter[Matrix]
"""Trained matrices of a stage, whole and without their biases, and how many there are of each; those that each expert
has once for all of them."""


def matrices_of_stages(job: JobSpec) -> tuple[Matrices, ...]:
    """The matrices that Muon orthogonalises on each pipeline stage; none with other optimizers."""
    model, degrees = job.model, job.parallelism
    found = [Matrices() for _ in range(degrees.pipeline_model_parallel_size)]
    if not job.optimizer.kind.orthogonalizes:
        return tuple(found)
    if model.family.is_encoder_decoder:
        for stage, matrices in enumerate(found):
            for half in HALVES:
                count = layers_of_stage(half, stage, model, degrees)
                _add(matrices, _of_layer(model, layers(model)[0]), count)
                _add(matrices, cross_matrices(model) if half == "decoder" else (), count)
        return tuple(found)
    for matrices, chunks in zip(found, kinds_of_stages(job), strict=True):
        for kinds in chunks:
            for layer, count in kinds:
                _add(matrices, _of_layer(model, layer), count)
    h = model.hidden_size
    if model.family.is_masked_lm or job.has_task:
        heads = 1 if job.has_task else 1 + model.bert_binary_head
        _add(found[-1], (Matrix("dense", h, h, "replicated", has_bias=False),), heads)
    if model.has_vision:
        _add(found[0], projector_matrices(model), 1)
    if model.has_vision and not model.has_frozen_encoder:
        encoder = encoder_model(model.image_encoder)
        _add(found[0], _of_layer(encoder, layers(encoder)[0]), encoder.num_layers)
    return tuple(found)


def matrix_parameters(matrices: Matrices, degrees: Degrees, *, of_experts: bool | None = None) -> int:
    """Parameters of matrices on each rank: of all, or only of those that experts have, or that they do not have."""
    return sum(
        count * matrix.parameters(degrees)
        for matrix, count in matrices.items()
        if of_experts is None or of_experts == (matrix.routing is not None)
    )


def matrix_parameters_in_all(job: JobSpec) -> int:
    """Those of the whole model."""
    return sum(matrix_parameters(matrices, Degrees()) for matrices in matrices_of_stages(job))


def stage_matrix_parameters(job: JobSpec) -> tuple[tuple[int, int], ...]:
    """Of each stage those on a rank, and of these the ones of experts."""
    if not job.optimizer.kind.orthogonalizes:
        return ((0, 0),) * job.parallelism.pipeline_model_parallel_size
    degrees = degrees_of(job.parallelism)
    return tuple(
        (matrix_parameters(matrices, degrees), matrix_parameters(matrices, degrees, of_experts=True))
        for matrices in matrices_of_stages(job)
    )


def orthogonalized_shapes(matrix: Matrix, *, split_qkv: bool) -> tuple[tuple[int, int], ...]:
    """Rows and columns of what is orthogonalised apart in a matrix."""
    is_whole = not matrix.holds or (matrix.name in ("linear_qkv", "linear_kv") and not split_qkv)
    return tuple((rows, matrix.inputs) for rows in ((matrix.outputs,) if is_whole else matrix.holds))


def _of_layer(model: ModelSpec, layer: Layer) -> tuple[Matrix, ...]:
    return tuple(each for each in matrices_of(model, layer) if each.outputs > 1)  # a gate is a vector, and Adam's


def _add(matrices: Matrices, more: tuple[Matrix, ...], count: int) -> None:
    for matrix in more:
        matrices[matrix._replace(has_bias=False)] += count
