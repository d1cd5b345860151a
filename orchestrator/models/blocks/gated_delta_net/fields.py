"""The fields of gated delta nets in `model`."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import Positive

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields


class GatedDeltaNetSpec(Section):
    """Which layers have linear attention, and its heads."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    linear_attention_freq: Annotated[
        Positive | list[Literal[0, 1]] | None,
        resume.same_or(lambda job: job.model.linear_attention_layers, resume.SHAPE),
        HashedIfChanged(),
        AlsoCalled(full_attention_interval="(the same number)"),
    ] = None
    """Which layers have a gated delta net (linear attention) in place of attention: all but the last of every so many
    layers, or a list of 1 (linear) and 0 (attention). None by default."""
    linear_num_key_heads: Annotated[Positive, resume.SHAPE, HashedIfChanged()] = 16
    """Gated delta net: heads of queries and keys."""
    linear_num_value_heads: Annotated[Positive, resume.SHAPE, HashedIfChanged()] = 32
    """Gated delta net: heads of values, each with a state of its own; each key head serves equally many."""
    linear_key_head_dim: Annotated[Positive, resume.SHAPE, HashedIfChanged()] = 128
    """Gated delta net: width of a head's query, and of its key."""
    linear_value_head_dim: Annotated[Positive, resume.SHAPE, HashedIfChanged()] = 128
    """Gated delta net: width of a head's value."""
    linear_conv_kernel_dim: Annotated[Positive, resume.SHAPE, HashedIfChanged()] = 4
    """Gated delta net: tokens that the convolution of queries, keys and values looks at."""

    @property
    def has_linear_attention(self) -> bool:
        """Whether some layers have linear attention."""
        return self.linear_attention_freq is not None

    @property
    def linear_attention_layers(self: "DeltaFields") -> tuple[bool, ...]:
        """For each layer whether it has linear attention."""
        frequency = self.linear_attention_freq
        if frequency is None:
            return (False,) * self.num_layers
        if isinstance(frequency, list):
            return tuple(bool(each) for each in frequency)
        return tuple((layer + 1) % frequency != 0 for layer in range(self.num_layers))
