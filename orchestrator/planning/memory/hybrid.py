"""What the layers of a hybrid keep for their backward pass, by kind, in bytes of one rank and one micro-batch.

A transformer layer is an attention and an MLP, each a norm before it and a dropout behind it: these are taken apart
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.models.blocks.base import RankShape, norm_statistics
from orchestrator.models.blocks.mlp import memory as mlp
from orchestrator.models.blocks.state_space import memory as state_space
from orchestrator.planning.memory.layer import backward_of_layer, saved_by_layer
from orchestrator.spec.hybrid import ATTENTION, MLP, STATE_SPACE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


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
        MLP: LayerActivations(branch + mlp.saved(job.model, sizes), whole),
        STATE_SPACE: LayerActivations(
            branch + state_space.saved(job.model, sizes), state_space.backward(job.model, sizes)
        ),
    }
