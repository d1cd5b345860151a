"""What a job says of it."""

from typing import Annotated

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import HashedIfChanged, NoMegatronFlag


class GatedAttentionFields(Section):
    """Fields of `model`."""

    attention_gate: Annotated[
        bool, resume.SHAPE, HashedIfChanged(), NoMegatronFlag("Megatron-LM has no gate of its own")
    ] = False
    """Multiply what the heads give by a sigmoid of the layer's input."""
