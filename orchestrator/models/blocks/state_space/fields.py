"""The fields of state space layers in `model`."""

from typing import Annotated

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import ListedAfter, MegatronFlag
from orchestrator.fields.values import Positive
from orchestrator.models.blocks.state_space.parameters import state_space_heads
from orchestrator.models.registry import MAMBA

_MAMBA = ("model.architecture", MAMBA.name)


class StateSpaceSpec(Section):
    """Heads, their groups and their states."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    mamba_state_dim: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_MAMBA), ListedAfter("hybrid_mlp_ratio")] = 128
    """mamba: state size of each channel of a state space layer."""
    mamba_head_dim: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_MAMBA)] = 64
    """mamba: channels of a head of a state space layer."""
    mamba_num_groups: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_MAMBA)] = 8
    """mamba: groups of heads that share how they write and read their state."""
    mamba_num_heads: Annotated[
        Positive | None,
        resume.same_or(lambda job: state_space_heads(job.model), resume.SHAPE),
        MegatronFlag(only=_MAMBA),
    ] = None
    """mamba: heads of a state space layer; 2h / mamba_head_dim by default."""
