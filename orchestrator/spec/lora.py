"""Low-rank adapters."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled
from orchestrator.fields.values import Fraction, Positive, PositiveNumber

AdaptedModule = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
"""The matrices of a transformer layer, as megatron-core names them."""
MODULES: tuple[AdaptedModule, ...] = get_args(AdaptedModule)


class LoraSpec(Section):
    """Train only two narrow matrices next to each chosen matrix of every layer (Hu et al. 2021)."""

    rank: Annotated[Positive, resume.ADAPTERS, AlsoCalled("r lora_r lora_rank")] = 16
    """Width of the adapters, r."""
    alpha: Annotated[PositiveNumber, resume.LOGIC, AlsoCalled("lora_alpha")] = 32.0
    """The output of an adapter is scaled by alpha / r."""
    lora_dropout: Annotated[Fraction, resume.LOGIC] = 0.0
    """Dropout on the input of the adapters."""
    target_modules: Annotated[
        list[AdaptedModule], Field(min_length=1), resume.ADAPTERS, AlsoCalled("lora_target_modules")
    ] = Field(default_factory=lambda: list(MODULES))
    """Matrices that get an adapter: queries, keys and values; the attention's output; into and out of the MLP."""

    @property
    def scale(self) -> float:
        """What the adapters' output is multiplied by."""
        return self.alpha / self.rank
