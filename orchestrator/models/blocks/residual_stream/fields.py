"""The fields of `model` that say what is around attention and MLP."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, ListedAfter, NoMegatronFlag
from orchestrator.fields.values import PositiveNumber

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


class ResidualStreamSpec(Section):
    """What norms of attention and MLP there are, and by what these, the embeddings and the logits are multiplied."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    norm_bias: Annotated[
        bool,
        resume.SHAPE,
        HashedIfChanged(),
        AlsoCalled("bias_for_layer_norm layer_norm_bias"),
        NoMegatronFlag("its LayerNorm has a bias"),
        ListedAfter("normalization"),
    ] = True
    """A bias in every LayerNorm (Command R has none). RMSNorm never has one."""
    transformer_block_type: Annotated[
        Literal["pre_ln", "post_ln", "sandwich_ln", "reordered_ln"], resume.SHAPE, ListedAfter("normalization")
    ] = "pre_ln"
    """Where the norms are. `pre_ln`: before attention and MLP, and after the last layer. `sandwich_ln`: also on what
    each of them gives, before it is added to the residual stream (Gemma 2 and 3). `reordered_ln`: there instead of
    before them (OLMo 2). `post_ln`: on the sum, and after the embedding (the original BERT)."""
    embedding_norm: Annotated[
        bool,
        resume.SHAPE,
        HashedIfChanged(),
        NoMegatronFlag("it normalises what its first attention reads, and no embeddings"),
        ListedAfter("transformer_block_type"),
    ] = False
    """BERT with `pre_ln`: a norm of the embeddings, which the first attention then reads as they are (ModernBERT)."""
    parallel_residual: Annotated[
        Literal["two_norms", "one_norm"] | None,
        resume.SHAPE,
        HashedIfChanged(),
        AlsoCalled("use_parallel_residual parallel_attn"),
        NoMegatronFlag("in its layers, the MLP follows on attention"),
        ListedAfter("transformer_block_type"),
    ] = None
    """Attention and MLP have the same input, and both are added to it. `two_norms`: each has a norm of its own
    (GPT-NeoX, Falcon 40B); `one_norm`: one norm is before both (Falcon 7B). By default the MLP follows on
    attention."""
    embedding_multiplier: Annotated[PositiveNumber, resume.LOGIC, HashedIfChanged()] = 1.0
    """Token embeddings are multiplied by this."""
    residual_multiplier: Annotated[PositiveNumber, resume.LOGIC, HashedIfChanged()] = 1.0
    """What attention and MLP give is multiplied by this before it is added to the residual stream."""
    logit_scale: Annotated[
        PositiveNumber, resume.LOGIC, HashedIfChanged(), AlsoCalled(logits_scaling="(one over it)")
    ] = 1.0
    """Logits are multiplied by this."""

    @property
    def has_norm_bias(self: "Fields") -> bool:
        """Whether norms have a bias."""
        return self.normalization == "LayerNorm" and self.norm_bias

    @property
    def has_multipliers(self) -> bool:
        """Whether embeddings, branches or logits are multiplied by a factor."""
        return any(factor != 1.0 for factor in (self.embedding_multiplier, self.residual_multiplier, self.logit_scale))

    @property
    def normalizes_embeddings(self) -> bool:
        """Whether there is a norm of the embeddings."""
        return self.embedding_norm or self.transformer_block_type == "post_ln"

    @property
    def normalizes_inputs(self) -> bool:
        """Whether there is a norm before attention, and one before the MLP."""
        return self.transformer_block_type in ("pre_ln", "sandwich_ln")

    @property
    def normalizes_each_input(self) -> bool:
        """Whether attention and MLP have a norm each before them."""
        return self.normalizes_inputs and self.parallel_residual != "one_norm"

    @property
    def normalizes_outputs(self) -> bool:
        """Whether there is a norm of what attention gives, and one of what the MLP gives."""
        return self.transformer_block_type in ("sandwich_ln", "reordered_ln")

    @property
    def norms_of_a_branch(self) -> int:
        """Norms that an attention, or an MLP, has around it."""
        return 2 if self.transformer_block_type == "sandwich_ln" else 1

    @property
    def norms_of_a_layer(self) -> int:
        """Norms of a layer with an attention and an MLP."""
        return 1 if self.parallel_residual == "one_norm" else 2 * self.norms_of_a_branch
