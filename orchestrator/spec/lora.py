"""Low-rank adapters."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedAs
from orchestrator.fields.values import Fraction, Positive, PositiveNumber
from orchestrator.models.blocks.registry import BLOCKS, could_have_adapters_first

if TYPE_CHECKING:
    AdaptedModule: TypeAlias = str
else:
    AdaptedModule = Literal[tuple(dict.fromkeys(name for block in BLOCKS for name in block.adapter_targets))]
"""The matrices of layers, as megatron-core names them: those of each block that may have adapters."""
_EARLIER_DEFAULT = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


class LoraSpec(Section):
    """Train only two narrow matrices next to each chosen matrix of every layer (Hu et al. 2021)."""

    rank: Annotated[Positive, resume.ADAPTERS, AlsoCalled("r lora_r lora_rank")] = 16
    """Width of the adapters, r."""
    alpha: Annotated[PositiveNumber, resume.LOGIC, AlsoCalled("lora_alpha")] = 32.0
    """The output of an adapter is scaled by alpha / r."""
    lora_dropout: Annotated[Fraction, resume.LOGIC] = 0.0
    """Dropout on the input of the adapters."""
    target_modules: Annotated[
        Annotated[list[AdaptedModule], Field(min_length=1)] | None,
        resume.same_or(lambda job: set(job.model.adapted_modules), resume.ADAPTERS),
        HashedAs(_EARLIER_DEFAULT, could_have_adapters_first),
        AlsoCalled("lora_target_modules"),
    ] = None
    """Matrices that get an adapter; by default all of the model's layers. `linear_qkv` and `linear_proj` are those of
    attention; `linear_q_proj` (or `linear_q_down_proj` and `linear_q_up_proj`), `linear_kv_down_proj`,
    `linear_kv_up_proj` and `linear_proj` those of latent attention; `in_proj` and `out_proj` those of linear attention
    and of state space layers; `linear_fc1` and `linear_fc2` those of an MLP and of experts."""

    @property
    def scale(self) -> float:
        """What the adapters' output is multiplied by."""
        return self.alpha / self.rank
