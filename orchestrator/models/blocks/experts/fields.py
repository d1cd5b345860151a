"""The fields of a mixture of experts in `model`."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import ListedAfter
from orchestrator.fields.values import NonNegative, Positive, PositiveNumber

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields


class ExpertsSpec(Section):
    """The experts, how tokens are routed to them, and kept balanced."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    num_experts: Annotated[Positive | None, resume.SHAPE, ListedAfter("attention_dropout")] = None
    """Experts in each mixture-of-experts layer; none by default, so every MLP is dense."""
    moe_layer_freq: Annotated[
        Positive | list[Literal[0, 1]], resume.same_or(lambda job: job.model.moe_layers, resume.SHAPE)
    ] = 1
    """Which layers have experts: the first of every so many layers, or a list of 1 (experts) and 0 (dense)."""
    moe_ffn_hidden_size: Annotated[
        Positive | None, resume.same_or(lambda job: job.model.moe_ffn_size, resume.SHAPE)
    ] = None
    """Width inside each expert; that of a dense MLP by default."""
    moe_shared_expert_intermediate_size: Annotated[Positive | None, resume.SHAPE] = None
    """Width inside a shared expert, which every token uses in addition to the routed ones; several are one of their
    total width. None by default."""
    moe_router_topk: Annotated[Positive, resume.LOGIC] = 2
    """Experts that each token is routed to."""
    moe_router_score_function: Annotated[Literal["softmax", "sigmoid"], resume.LOGIC] = "softmax"
    """How the router's logits become weights of the chosen experts."""
    moe_router_pre_softmax: Annotated[bool, resume.LOGIC] = False
    """Compute the softmax over all experts before choosing, instead of over the chosen ones."""
    moe_router_dtype: Annotated[
        Literal["fp32", "fp64"] | None,
        resume.trajectory("the router rounds differently, and near ties may choose other experts"),
    ] = None
    """Dtype in which the router computes; that of the activations by default."""
    moe_router_load_balancing_type: Annotated[
        Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"], resume.BALANCE
    ] = "aux_loss"
    """How the load of experts is balanced: by a loss over each micro-batch, by a loss over each sequence, or by an
    assignment that is balanced by construction."""
    moe_aux_loss_coeff: Annotated[NonNegative, resume.BALANCE] = 0.0
    """Weight of the load-balancing loss; 0.01 is a good start."""
    moe_z_loss_coeff: Annotated[PositiveNumber | None, resume.BALANCE] = None
    """Weight of the loss that keeps the router's logits small; 0.001 is a good start."""
    moe_expert_capacity_factor: Annotated[PositiveNumber | None, resume.LOGIC] = None
    """Maximum tokens per expert, as a multiple of its even share; tokens beyond it skip the experts. By default no
    token is dropped."""
    moe_token_dispatcher_type: Annotated[
        Literal["allgather", "alltoall"],
        resume.safe("tokens reach their experts in another way; losses agree, not bitwise"),
    ] = "alltoall"
    """How tokens reach their experts: each token is sent only to its experts' ranks (`alltoall`), or all tokens to all
    ranks (`allgather`)."""
    moe_grouped_gemm: Annotated[
        bool | None, resume.safe("the same products in other kernels; losses agree, not bitwise")
    ] = None
    """Compute all experts of a rank in one kernel, with Transformer Engine's layers; on by default with these
    layers."""

    @property
    def has_experts(self) -> bool:
        """Whether some layers have experts in place of a dense MLP."""
        return self.num_experts is not None

    @property
    def expert_count(self) -> int:
        """Experts of each layer that has some; 0 for a dense model."""
        return self.num_experts or 0

    @property
    def shared_expert_size(self) -> int:
        """Width inside the expert that every token passes; 0 where there is none."""
        return self.moe_shared_expert_intermediate_size or 0

    @property
    def moe_ffn_size(self: "ExpertFields") -> int:
        """Width inside each expert."""
        return self.moe_ffn_hidden_size or self.ffn_size

    @property
    def moe_kept_share(self) -> float:
        """Of the tokens that are routed to experts those that these take, where all are asked for equally often: each
        its capacity. A capacity above the even share drops nothing then, and nothing is padded up to it.
        """
        return min(self.moe_expert_capacity_factor or 1.0, 1.0)

    @property
    def moe_layers(self: "ExpertFields") -> tuple[bool, ...]:
        """For each layer whether it has experts."""
        if not self.has_experts:
            return (False,) * self.num_layers
        if isinstance(self.moe_layer_freq, list):
            return tuple(bool(has) for has in self.moe_layer_freq)
        return tuple(layer % self.moe_layer_freq == 0 for layer in range(self.num_layers))
