"""What the layers of a hybrid keep for their backward pass, by kind, in bytes of one rank and one micro-batch.

A transformer layer is an attention and an MLP, each a norm before it and a dropout behind it: these are taken apart
here. A state space layer keeps, in mamba-ssm's fused kernel, the output of its first matrix and the scan's output, and
outside it the normed output for the second matrix; it computes the convolution and the states of each piece of the
sequence again. Its figures have not been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.models.blocks.base import FP32, RankShape, norm_statistics
from orchestrator.planning.memory.layer import backward_of_layer, kept_inside_mlp, saved_by_layer
from orchestrator.spec.hybrid import ATTENTION, MLP, STATE_SPACE, convolved_width, projected_width, state_space_width
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

PIECE = 128
"""Tokens between states that the scan writes down."""


@dataclass(frozen=True)
class LayerActivations:
    """Bytes of one layer."""

    saved: int
    backward: int
    """The most that its backward pass takes beyond what is saved."""


def kept_by_kind(job: JobSpec, sizes: RankShape, layers: Layers) -> dict[str, LayerActivations]:
    """For each kind of layer."""
    branch = 2 * sizes.stream + sizes.own_tokens * norm_statistics(job.model)
    branch += sizes.own_tokens * sizes.hidden if job.model.hidden_dropout > 0 else 0
    attention = saved_by_layer(job, sizes, layers, selective=False, experts=0) - branch
    whole = backward_of_layer(job, sizes, layers)
    return {
        ATTENTION: LayerActivations(attention, whole),
        MLP: LayerActivations(branch + kept_inside_mlp(job, sizes), whole),
        STATE_SPACE: _state_space(job, sizes, branch),
    }


def _state_space(job: JobSpec, sizes: RankShape, branch: int) -> LayerActivations:
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    width = state_space_width(model)
    row = sizes.tokens * sizes.width // tp
    projected, convolved, inner = (row * each for each in (projected_width(model), convolved_width(model), width))
    states = -(-sizes.tokens // PIECE) * width // tp * model.mamba_state_dim * FP32
    # Batches of one are already laid out as the kernel wants them; others are copied, which it keeps instead.
    saved = branch + projected + 2 * inner + sizes.tokens * FP32
    weight = projected_width(model) * sizes.hidden * sizes.width // tp
    gathered = sizes.whole_stream if sizes.sequence_parallel else 0
    return LayerActivations(saved, sizes.stream + projected + convolved + inner + 2 * states + weight + gathered)
