"""Rotary positions for sequences longer than those that the base was chosen for."""

import math
from typing import Annotated, Literal

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import Number, Positive, PositiveNumber


class RopeScaling(Section):
    """How the rotary frequencies are slowed down for long sequences."""

    type: Annotated[Literal["linear", "llama3", "yarn"], AlsoCalled("rope_type", use_rope_scaling="llama3")]
    """`linear` divides all frequencies; `llama3` (Llama 3.1) and `yarn` (Peng et al. 2023) only the slow ones."""
    factor: Annotated[float, Number(ge=1.0), AlsoCalled("rope_scaling_factor")]
    """Divisor of the slow frequencies: how much longer the sequences may become."""
    original_max_position_embeddings: Positive | None = None
    """Longest sequence of the training before the scaling; `llama3` and `yarn` need it."""
    low_freq_factor: PositiveNumber = 1.0
    """`llama3`: frequencies that turn less often than this over the original length are divided."""
    high_freq_factor: PositiveNumber = 4.0
    """`llama3`: frequencies that turn more often than this stay as they are; between the two they are blended."""
    beta_fast: PositiveNumber = 32.0
    """`yarn`: frequencies that turn more often than this over the original length stay as they are."""
    beta_slow: PositiveNumber = 1.0
    """`yarn`: frequencies that turn less often than this are divided; between the two they are blended."""
    truncate: Annotated[bool, HashedIfChanged()] = True
    """`yarn`: round the channels between which frequencies are blended to whole ones; gpt-oss does not."""
    attention_factor: PositiveNumber | None = None
    """`yarn`: rotated queries and keys are multiplied by this; 0.1 · ln(factor) + 1 by default."""
    mscale: Annotated[PositiveNumber | None, HashedIfChanged()] = None
    """`yarn`: with `mscale_all_dim`, the default of `attention_factor` is (0.1 · mscale · ln(factor) + 1) / (0.1 ·
    mscale_all_dim · ln(factor) + 1), as in DeepSeek-V2."""
    mscale_all_dim: Annotated[PositiveNumber | None, HashedIfChanged()] = None
    """`yarn`: latent attention multiplies its scores by (0.1 · mscale_all_dim · ln(factor) + 1)² as well."""

    @property
    def rotation_factor(self) -> float:
        """What rotated queries, and keys, are multiplied by."""
        if self.type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is None or self.mscale_all_dim is None:
            return self._factor(1.0)
        return self._factor(self.mscale) / self._factor(self.mscale_all_dim)

    @property
    def score_factor(self) -> float:
        """What the scores of latent attention are multiplied by, beside what that of the rotated parts brings."""
        return 1.0 if self.mscale_all_dim is None else self._factor(self.mscale_all_dim) ** 2

    def _factor(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0


def attention_factor(scaling: RopeScaling | None) -> float:
    """What rotated queries, and keys, are multiplied by."""
    return 1.0 if scaling is None else scaling.rotation_factor
