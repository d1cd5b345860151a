"""The fields of an MLP in `model`."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, ListedAfter, MegatronFlag
from orchestrator.fields.values import Number, Positive, PositiveNumber

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


class MlpSpec(Section):
    """Its width and its activation."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    ffn_hidden_size: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.ffn_size, resume.SHAPE),
        AlsoCalled("n_inner d_ff intermediate_size"),
        ListedAfter("seq_length"),
    ] = None
    """Width inside the MLP; 4h by default, or 8h/3 rounded up to a multiple of 64 with a gate."""
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "relu", "squared_relu", "swiglu", "geglu", "geglu_exact", "quick_geglu"],
        resume.activation,
        AlsoCalled(
            "activation_function hidden_act",
            swiglu="swiglu",
            gated_linear_unit="(swiglu or geglu)",
            quick_geglu="quick_geglu",
            openai_gelu="(gelu: megatron-core ignores it)",
            squared_relu="squared_relu",
        ),
        ListedAfter("apply_layernorm_1p"),
    ] = "gelu"
    """The MLP's activation. `gelu_tanh` is GPT-2's approximation; `swiglu`, `geglu` (with that approximation),
    `geglu_exact` (with the exact function, as in ModernBERT) and `quick_geglu` (with x · sigmoid(1.702 · x), as in
    gpt-oss) have a gate of the same width."""
    activation_func_clamp_value: Annotated[
        PositiveNumber | None, resume.LOGIC, HashedIfChanged(), AlsoCalled("swiglu_limit"), MegatronFlag()
    ] = None
    """`quick_geglu`: what the gate is at most, and its other factor at most and, negative, at least."""
    glu_linear_offset: Annotated[float, Number(), resume.LOGIC, HashedIfChanged(), MegatronFlag()] = 0.0
    """`quick_geglu`: a number that is added to what the gate multiplies; 1 in gpt-oss."""

    @property
    def ffn_size(self: "Fields") -> int:
        """Width inside the MLP."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        if self.is_gated:
            return -(-8 * self.hidden_size // 3 // 64) * 64
        return 4 * self.hidden_size

    @property
    def is_gated(self) -> bool:
        """Whether the MLP's first matrix has a second half that gates the first."""
        return self.activation in ("swiglu", "geglu", "geglu_exact", "quick_geglu")

    @property
    def has_sigmoid_gate(self) -> bool:
        """Whether the gate is an input times a sigmoid: SiLU, or an approximation of GeLU."""
        return self.is_gated and self.activation != "geglu_exact"
