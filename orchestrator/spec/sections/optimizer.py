"""The optimizer."""

from typing import Annotated, Any, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, MegatronFlag
from orchestrator.fields.values import Before, NonNegative, Number, PositiveNumber

Beta = Annotated[float, Number(ge=0.0, lt=1.0)]

_MUON = (
    "Muon is not in this version: megatron-core's needs another package (emerging_optimizers), which this project "
    "does not install, and does not support the distributed optimizer and fp16; write adam or sgd"
)
_ADAMW = "adam is AdamW: its weight decay is decoupled unless decoupled_weight_decay is false; write adam"


def _explain(name: Any) -> Any:
    if isinstance(name, str) and name.lower() in ("muon", "dist_muon"):
        raise ValueError(_MUON)
    if isinstance(name, str) and name.lower() in ("adamw", "adam_w", "fusedadam", "fused_adam"):
        raise ValueError(_ADAMW)
    return name


_ADAM = ("optimizer.name", "adam")
_SGD = ("optimizer.name", "sgd")


class OptimizerSpec(Section):
    """Adam or SGD with momentum. Biases are not decayed, and norms only when asked."""

    name: Annotated[
        Literal["adam", "sgd"],
        Before(_explain),
        resume.forbidden("the optimizer's state has another meaning"),
        AlsoCalled("optimizer_type"),
        MegatronFlag("optimizer"),
    ] = "adam"
    """The optimizer: `adam` with decoupled weight decay is AdamW; `sgd` has momentum and half of the state."""
    lr: Annotated[PositiveNumber, resume.RATE, AlsoCalled("learning_rate max_lr peak_lr"), MegatronFlag()]
    """Peak learning rate."""
    min_lr: Annotated[NonNegative, resume.RATE, AlsoCalled("lr_min"), MegatronFlag()] = 0.0
    """Learning rate at the end of the decay."""
    decoupled_lr: Annotated[PositiveNumber | None, resume.decoupled_rate, MegatronFlag()] = None
    """Peak learning rate of the word embeddings and the output layer; `lr` by default."""
    decoupled_min_lr: Annotated[NonNegative | None, resume.RATE, MegatronFlag()] = None
    """Their learning rate at the end of the decay; `min_lr` by default."""
    weight_decay: Annotated[NonNegative, AlsoCalled("wd"), MegatronFlag()] = 0.01
    """Weight decay: decoupled with `adam`, added to the gradient (L2) with `sgd`."""
    weight_decay_incr_style: Annotated[Literal["constant", "linear", "cosine"], MegatronFlag()] = "constant"
    """How the weight decay changes from `start_weight_decay` to `end_weight_decay` over the training."""
    start_weight_decay: Annotated[NonNegative | None, MegatronFlag()] = None
    """Weight decay at the first step, if it increases."""
    end_weight_decay: Annotated[NonNegative | None, MegatronFlag()] = None
    """Weight decay at the end, if it increases."""
    decay_norms: Annotated[bool, resume.PARAMETER_GROUPS] = False
    """Decay the weights of norms as well; biases never are."""
    apply_wd_to_qk_layernorm: Annotated[bool, resume.PARAMETER_GROUPS, MegatronFlag()] = False
    """Of the norms, decay only those of queries and keys."""
    decay_embeddings: Annotated[bool, resume.PARAMETER_GROUPS] = True
    """Decay the embedding tables of words and positions."""
    decoupled_weight_decay: bool = True
    """adam: decay the weights themselves (AdamW); false adds the decay to the gradient (L2), as in the original
    Adam."""
    adam_beta1: Annotated[Beta, AlsoCalled("beta1 betas"), MegatronFlag(only=_ADAM)] = 0.9
    """adam: decay of the first moment."""
    adam_beta2: Annotated[Beta, AlsoCalled("beta2 betas"), MegatronFlag(only=_ADAM)] = 0.999
    """adam: decay of the second moment."""
    adam_eps: Annotated[PositiveNumber, AlsoCalled("eps adam_epsilon"), MegatronFlag(only=_ADAM)] = 1e-8
    """adam: added to the root of the second moment."""
    sgd_momentum: Annotated[Beta, resume.momentum, AlsoCalled("momentum"), MegatronFlag(only=_SGD)] = 0.9
    """sgd: decay of the momentum; 0 means no momentum and no state."""
    clip_grad: Annotated[
        NonNegative,
        AlsoCalled(
            "grad_clip gradient_clipping gradient_clip_val max_grad_norm max_norm megatron_lm_gradient_clipping"
        ),
        MegatronFlag(),
    ] = 1.0
    """Largest global L2 norm of the gradient; 0 turns clipping off."""

    @property
    def state_tensors(self) -> int:
        """Tensors of state per parameter, beside the main copy of the weights: Adam's two moments, SGD's momentum."""
        if self.name == "adam":
            return 2
        return 1 if self.sgd_momentum > 0 else 0

    @property
    def weight_decays(self) -> tuple[float, float]:
        """Weight decay at the first step and at the end."""
        if self.weight_decay_incr_style == "constant":
            return self.weight_decay, self.weight_decay
        return self.start_weight_decay or 0.0, self.end_weight_decay or 0.0
