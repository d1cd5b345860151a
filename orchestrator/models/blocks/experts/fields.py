"""The fields of a mixture of experts in `model`."""

from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import HashedIfChanged, ListedAfter, NoMegatronFlag, NotOfNetwork
from orchestrator.fields.values import NonNegative, Positive, PositiveNumber
from orchestrator.models.layer_pattern import EXPERT_LETTER, layer_pattern

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import ExpertFields

AuxiliaryLoss = Literal["aux_loss", "seq_aux_loss", "global_aux_loss"]
"""A loss that balances the load: over what."""


class ExpertsSpec(Section):
    """The experts, how tokens are routed to them, and kept balanced."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    num_experts: Annotated[Positive | None, resume.SHAPE, ListedAfter("attention_dropout")] = None
    """Experts in each mixture-of-experts layer; none by default, so every MLP is dense. In a hybrid the layers with an
    `E` in its pattern have them."""
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
    moe_shared_expert_gate: Annotated[bool, resume.SHAPE, HashedIfChanged()] = False
    """Weight what the shared expert adds by the sigmoid of a learned score of each token."""
    moe_router_topk: Annotated[Positive, resume.LOGIC] = 2
    """Experts that each token is routed to."""
    moe_router_score_function: Annotated[Literal["softmax", "sigmoid"], resume.LOGIC] = "softmax"
    """How the router's logits become scores: the weights of the chosen experts."""
    moe_router_pre_softmax: Annotated[bool, resume.LOGIC] = False
    """Compute the softmax over all experts before choosing, instead of over the chosen ones."""
    moe_router_topk_scaling_factor: Annotated[PositiveNumber | None, resume.LOGIC, HashedIfChanged()] = None
    """Multiplies the weights of the chosen experts; 1 by default."""
    moe_apply_probs_on_input: Annotated[bool, resume.LOGIC, HashedIfChanged()] = False
    """Multiply what goes into the chosen expert by its weight, instead of what comes out (Llama 4); for one expert per
    token."""
    moe_router_num_groups: Annotated[Positive | None, resume.LOGIC, HashedIfChanged()] = None
    """Groups of equally many experts, of which each token's experts are from some only; no groups by default."""
    moe_router_group_topk: Annotated[Positive | None, resume.LOGIC, HashedIfChanged()] = None
    """Groups that each token's experts are from."""
    moe_router_group_score_topk: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.group_score_topk, resume.LOGIC),
        HashedIfChanged(),
        NoMegatronFlag("it adds up as many scores of a group as a token has experts of each of its groups"),
    ] = None
    """Experts of a group whose scores make up its own: the sum of the highest ones; moe_router_topk /
    moe_router_group_topk by default, as in DeepSeek-V3, and 1 in DeepSeek-V2."""
    moe_router_enable_expert_bias: Annotated[bool, resume.SHAPE, HashedIfChanged()] = False
    """Balance the load without a loss: choose experts by score and a bias, which each step raises for experts with
    fewer tokens than the average, and lowers for those with more. Weights have no bias. For sigmoid scores."""
    moe_router_bias_update_rate: Annotated[NonNegative, resume.BALANCE, NotOfNetwork(), HashedIfChanged()] = 0.001
    """By how much a step changes the bias of an expert; 0 leaves it as it is, and so do adapters (`lora`)."""
    moe_router_dtype: Annotated[
        Literal["fp32", "fp64"] | None,
        resume.trajectory("the router rounds differently, and near ties may choose other experts"),
        NotOfNetwork(),
    ] = None
    """Dtype in which the router computes; that of the activations by default."""
    moe_router_load_balancing_type: Annotated[
        Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"] | list[AuxiliaryLoss],
        resume.BALANCE,
        NotOfNetwork(),
    ] = "aux_loss"
    """How the load of experts is balanced: by a loss over each micro-batch, over each sequence, or over the
    micro-batches of all replicas, or by several of these losses; or by an assignment that is balanced by
    construction."""
    moe_aux_loss_coeff: Annotated[NonNegative | list[NonNegative], resume.BALANCE, NotOfNetwork()] = 0.0
    """Weight of the load-balancing loss, or of each of several; 0.01 is a good start."""
    moe_z_loss_coeff: Annotated[PositiveNumber | None, resume.BALANCE, NotOfNetwork()] = None
    """Weight of the loss that keeps the router's logits small; 0.001 is a good start."""
    moe_expert_capacity_factor: Annotated[PositiveNumber | None, resume.LOGIC, NotOfNetwork()] = None
    """Maximum tokens per expert, as a multiple of its even share; tokens beyond it skip the experts. By default no
    token is dropped."""
    moe_token_dispatcher_type: Annotated[
        Literal["allgather", "alltoall"],
        resume.safe("tokens reach their experts in another way; losses agree, not bitwise"),
        NotOfNetwork(),
    ] = "alltoall"
    """How tokens reach their experts: each token is sent only to its experts' ranks (`alltoall`), or all tokens to all
    ranks (`allgather`)."""
    moe_grouped_gemm: Annotated[
        bool | None,
        resume.unless_experts_change_format(
            resume.safe("the same products in other kernels; losses agree, not bitwise")
        ),
        NotOfNetwork(),
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
    def splits_experts(self: "ExpertFields") -> bool:
        """Whether ranks can split each expert: in megatron-core not where it has biases."""
        return not (self.has_experts and self.add_bias_linear)

    @property
    def shared_expert_size(self) -> int:
        """Width inside the expert that every token passes; 0 where there is none."""
        return self.moe_shared_expert_intermediate_size or 0

    @property
    def group_score_topk(self) -> int:
        """Experts whose scores make up that of their group; 0 where there are no groups."""
        if self.moe_router_group_topk is None:
            return 0
        return self.moe_router_group_score_topk or self.moe_router_topk // self.moe_router_group_topk

    @property
    def auxiliary_losses(self) -> dict[str, float]:
        """Weight of each loss that balances the load, by its kind."""
        kinds, weights = self.moe_router_load_balancing_type, self.moe_aux_loss_coeff
        found: dict[str, float] = {}
        if isinstance(kinds, list):
            found = dict(zip(kinds, weights if isinstance(weights, list) else (), strict=False))
        elif kinds in get_args(AuxiliaryLoss) and not isinstance(weights, list):
            found = {kinds: weights}
        return {kind: weight for kind, weight in found.items() if weight > 0}

    @property
    def assigns_by_rank(self) -> bool:
        """Whether what a token is given to depends on the others of its rank."""
        return self.moe_router_load_balancing_type == "sinkhorn" or self.moe_expert_capacity_factor is not None

    @property
    def share_of_expert(self: "ExpertFields") -> float:
        """Part of the tokens that an expert computes on, if all get as many; those beyond its capacity are dropped."""
        return self.moe_router_topk * self.moe_kept_share / self.expert_count

    @property
    def joins_experts(self: "ExpertFields") -> bool:
        """Whether a kernel computes the experts of a rank together, their gate included, where one can."""
        is_plain = self.has_sigmoid_gate and not self.moe_apply_probs_on_input
        return self.has_experts and is_plain and self.moe_grouped_gemm is not False

    @property
    def balances_groups_of_tokens(self) -> bool:
        """Whether experts are balanced within each micro-batch, or over those before it in a step."""
        by_loss = not self.auxiliary_losses.keys() <= {"seq_aux_loss"}
        return self.has_experts and (by_loss or self.assigns_by_rank)

    @property
    def balances_replicas(self) -> bool:
        """Whether experts are balanced over the micro-batches of all replicas at a time."""
        return "global_aux_loss" in self.auxiliary_losses

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
        if self.family.is_hybrid:
            return tuple(letter == EXPERT_LETTER for letter in layer_pattern(self))
        if isinstance(self.moe_layer_freq, list):
            return tuple(bool(has) for has in self.moe_layer_freq)
        return tuple(layer % self.moe_layer_freq == 0 for layer in range(self.num_layers))
