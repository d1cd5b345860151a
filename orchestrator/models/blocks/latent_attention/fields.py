"""The fields of multi-head latent attention in `model`."""

from typing import Annotated

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import Positive


class LatentAttentionSpec(Section):
    """Widths of the latents, and of a head's parts."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    kv_lora_rank: Annotated[Positive | None, resume.SHAPE, HashedIfChanged()] = None
    """Multi-head latent attention: width of the latent that the keys and values of all heads come from. Without it the
    attention is grouped-query attention."""
    q_lora_rank: Annotated[Positive | None, resume.SHAPE, HashedIfChanged()] = None
    """Latent attention: width of the latent that queries come from; by default they have none."""
    qk_head_dim: Annotated[Positive, resume.SHAPE, HashedIfChanged(), AlsoCalled("qk_nope_head_dim")] = 128
    """Latent attention: the part of a head's query, and of its key, that is not rotated."""
    qk_pos_emb_head_dim: Annotated[Positive, resume.SHAPE, HashedIfChanged(), AlsoCalled("qk_rope_head_dim")] = 64
    """Latent attention: the rotated part. All heads share that of the key."""
    v_head_dim: Annotated[Positive, resume.SHAPE, HashedIfChanged()] = 128
    """Latent attention: width of a head's value."""

    @property
    def has_latent_attention(self) -> bool:
        """Whether keys and values come from a latent."""
        return self.kv_lora_rank is not None
