"""What FP8 changes in the memory of one rank, in bytes.

Weights stay in bf16, and Transformer Engine keeps a copy of them in FP8 in both orders (Hopper multiplies in one order
only). What a linear layer keeps of its input for the gradient of its weight is one byte per element instead of two.
Layers at the ends that stay in bf16 count as if they were a part of each. Scaling factors are not counted: at the most
4 bytes for each 128 elements (blockwise).
"""

from __future__ import annotations

from functools import partial

from orchestrator.models.blocks.base import RankShape
from orchestrator.planning.encoder_decoder import half_job, halves_of_stage
from orchestrator.planning.layout.chunk_layers import in_stages
from orchestrator.planning.parameters.layer import degrees_of, layer_parameters
from orchestrator.spec.job import JobSpec

_BOTH_ORDERS = 2


def copies_of_weights(job: JobSpec, stage: int) -> int:
    """Of the matrices of a stage."""
    fp8 = job.precision.fp8
    if fp8 is None:
        return 0
    model, degrees = job.model, degrees_of(job.parallelism)
    if model.family.is_encoder_decoder:
        count = 0
        for half, held in halves_of_stage(job, stage).items():
            count += held * layer_parameters(half_job(job, half).model, degrees)
            if half == "decoder":  # queries and outputs, keys and values of the attention to the encoder
                count += held * 4 * model.hidden_size * model.num_attention_heads * model.head_dim // degrees.tp
    else:
        count = in_stages(job, partial(layer_parameters, model, degrees))[stage]
    return int(_BOTH_ORDERS * count * fp8.share_of_layers(job.model.num_layers))


def kept_less(job: JobSpec, sizes: RankShape, of_mlp: int) -> int:
    """What one layer keeps less of a micro-batch. `of_mlp`: bytes in bf16 of the inputs of linears inside its MLP."""
    fp8 = job.precision.fp8
    if fp8 is None:
        return 0
    # The attention keeps its output as well; with delayed scaling the linear behind it does not share it.
    given = sizes.tokens * (job.model.attention.scores(job.model).output // sizes.tp) * sizes.width
    twice = given if fp8.recipe == "delayed" else 0
    return int((2 * sizes.stream + of_mlp - twice) // 2 * fp8.share_of_layers(job.model.num_layers))
