"""Rotary positions for sequences longer than those that the base was chosen for."""

import math
from typing import Annotated, Literal

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import Number, Positive, PositiveNumber


class RopeScaling(Section):
    """How the rotary frequencies are slowed down for long sequences."""

    type: Annotated[Literal["linear", "llama3", "yarn", "longrope"], AlsoCalled("rope_type", use_rope_scaling="llama3")]
    """`linear` divides all frequencies; `llama3` (Llama 3.1) and `yarn` (Peng et al. 2023) only the slow ones;
    `longrope` (Ding et al. 2024, Phi-3 with 128k tokens) each by a factor of its own, and by others in sequences of
    more than `original_max_position_embeddings` tokens."""
    factor: Annotated[float, Number(ge=1.0), AlsoCalled("rope_scaling_factor")]
    """Divisor of the slow frequencies: how much longer the sequences may become."""
    original_max_position_embeddings: Positive | None = None
    """Longest sequence of the training before the scaling; all but `linear` need it."""
    short_factor: Annotated[list[PositiveNumber] | None, HashedIfChanged()] = None
    """`longrope`: divisor of each frequency, as many as pairs of channels of a head are rotated, in sequences of up to
    `original_max_position_embeddings` tokens."""
    long_factor: Annotated[list[PositiveNumber] | None, HashedIfChanged()] = None
    """`longrope`: the same in longer sequences. A text that is generated stays on the side of `seq_length`."""
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
    """`yarn` and `longrope`: rotated queries and keys are multiplied by this; 0.1 · ln(factor) + 1 by default, of
    `longrope` √(1 + ln(factor) / ln(original_max_position_embeddings))."""
    mscale: Annotated[PositiveNumber | None, HashedIfChanged()] = None
    """`yarn`: with `mscale_all_dim`, the default of `attention_factor` is (0.1 · mscale · ln(factor) + 1) / (0.1 ·
    mscale_all_dim · ln(factor) + 1), as in DeepSeek-V2."""
    mscale_all_dim: Annotated[PositiveNumber | None, HashedIfChanged()] = None
    """`yarn`: latent attention multiplies its scores by (0.1 · mscale_all_dim · ln(factor) + 1)² as well."""

    @property
    def rotation_factor(self) -> float:
        """What rotated queries, and keys, are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.type == "longrope":
            assert self.original_max_position_embeddings is not None, "a rule of the spec"
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))
        if self.type != "yarn":
            return 1.0
        if self.mscale is None or self.mscale_all_dim is None:
            return self._factor(1.0)
        return self._factor(self.mscale) / self._factor(self.mscale_all_dim)

    def lengths_like(self, tokens: int) -> tuple[int, int | None]:
        """Tokens of the shortest and the longest sequence with the same frequencies as one of `tokens`; None where none
        is the longest.
        """
        switch = self.original_max_position_embeddings if self.type == "longrope" else None
        if switch is None:
            return 1, None
        return (1, switch) if tokens <= switch else (switch + 1, None)

    @property
    def score_factor(self) -> float:
        """What the scores of latent attention are multiplied by, beside what that of the rotated parts brings."""
        return 1.0 if self.mscale_all_dim is None else self._factor(self.mscale_all_dim) ** 2

    def _factor(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0


def attention_factor(scaling: RopeScaling | None) -> float:
    """What rotated queries, and keys, are multiplied by."""
    return 1.0 if scaling is None else scaling.rotation_factor
