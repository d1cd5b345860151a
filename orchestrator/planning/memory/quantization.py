"""What FP8 and FP4 change in the memory of one rank, in bytes.

Weights stay in bf16, and Transformer Engine keeps a copy of them in the narrow format in both orders: Hopper multiplies
in one order only, and in MXFP8 and NVFP4 each order has blocks, and so scaling factors, of its own. Of its input, a
linear layer keeps one of these copies for the gradient of its weight, in place of bf16: one byte per element instead of
two in FP8. Layers at the ends that stay in bf16 count as if they were a part of each. Experts in kernels of ours have
neither.
"""

from __future__ import annotations

from functools import partial

from orchestrator.kernel_selection.experts import joins_expert_mlp
from orchestrator.models.blocks.base import RankShape
from orchestrator.models.layers import Layer
from orchestrator.planning.encoder_decoder import half_job, halves_of_stage
from orchestrator.planning.layout.chunk_layers import in_stages
from orchestrator.planning.memory.layer_activations import is_recomputed
from orchestrator.planning.parameters.layer import degrees_of, layer_parameters, stage_expert_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES
from orchestrator.spec.sections.runtime import Layers

_BOTH_ORDERS = 2


def copies_of_weights(job: JobSpec, layers: Layers, stage: int) -> int:
    """Of the matrices of a stage."""
    narrow = job.precision.quantization
    if narrow is None:
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
        count -= stage_expert_parameters(job)[stage] if joins_expert_mlp(job, layers) else 0
    return int(_BOTH_ORDERS * narrow.element_bytes * count * narrow.share_of_layers(job.model.num_layers))


def saved_by_quantization(job: JobSpec, layer: Layer, sizes: RankShape, of_mlp: int) -> int:
    """What one layer keeps less of a micro-batch. `of_mlp`: bytes in bf16 of the inputs of linears inside its MLP."""
    narrow, fp8 = job.precision.quantization, job.precision.fp8
    if narrow is None:
        return 0
    # The router also keeps the output of a norm that is a module of its own, in bf16.
    normed = sizes.stream * (2 - any(block.norm_is_module for block in layer))
    twice = 0
    if fp8 is not None and fp8.recipe == "delayed":
        # A linear layer keeps its FP8 copy beside the bf16 tensor that attention or the router keeps.
        given = sizes.tokens * (job.model.attention.scores(job.model).output // sizes.tp) * sizes.width
        twice = given + sum(block.copied_inputs(job.model, sizes) for block in layer if not is_recomputed(job, block))
    saved = 1 - narrow.element_bytes / DTYPE_BYTES["bf16"]
    return int((normed + of_mlp - twice) * saved * narrow.share_of_layers(job.model.num_layers))
