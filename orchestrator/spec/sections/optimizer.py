"""The optimizer."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag
from orchestrator.fields.values import Before, Fraction, NonNegative, Number, Positive, PositiveNumber

Beta = Annotated[float, Number(ge=0.0, lt=1.0)]

_ADAMW = "adam is AdamW: its weight decay is decoupled unless decoupled_weight_decay is false; write adam"

_DIST_MUON = "muon shares its state with parallelism.use_distributed_optimizer; write muon"


def _explain(name: Any) -> Any:
    if isinstance(name, str) and name.lower() == "dist_muon":
        raise ValueError(_DIST_MUON)
    if isinstance(name, str) and name.lower() in ("adamw", "adam_w", "fusedadam", "fused_adam"):
        raise ValueError(_ADAMW)
    return name


_ADAM = ("optimizer.name", ("adam", "muon"))
_SGD = ("optimizer.name", "sgd")
_MUON = ("optimizer.name", "muon")

NS_COEFFICIENTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "simple": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}
"""Of Newton-Schulz iterations, step by step: of Jordan et al. 2024 ("Muon: an optimizer for hidden layers"),
and of Cesista et al. 2025 ("Squeezing 1-2% efficiency gains out of Muon").
"""


MomentDtype = Literal["fp32", "bf16"]
_BYTES: dict[MomentDtype, int] = {"fp32": 4, "bf16": 2}


class OptimizerKind(NamedTuple):
    """What is true of an optimizer."""

    moments: tuple[str, ...]
    """Tensors of state of a parameter, by their names in a checkpoint."""
    orthogonalizes: bool = False
    """It orthogonalizes the momentum of each matrix."""

    @property
    def is_adam(self) -> bool:
        """Whether it is Adam for every parameter."""
        return self.has_second_moment and not self.orthogonalizes

    @property
    def has_second_moment(self) -> bool:
        """Whether it is Adam for some parameters at least."""
        return len(self.moments) > 1


_OF_ADAM = ("exp_avg", "exp_avg_sq")
OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = {
    "adam": OptimizerKind(_OF_ADAM),
    "sgd": OptimizerKind(_OF_ADAM[:1]),
    "muon": OptimizerKind(_OF_ADAM, orthogonalizes=True),
}
"""By the names in a spec, which nothing outside of the spec compares."""


class OptimizerSpec(Section):
    """Adam, Muon, or SGD with momentum. Biases are not decayed, and norms only when asked."""

    name: Annotated[
        Literal["adam", "sgd", "muon"],
        Before(_explain),
        resume.forbidden("the optimizer's state has another meaning"),
        AlsoCalled("optimizer_type"),
    ] = "adam"
    """The optimizer: `adam` with decoupled weight decay is AdamW; `sgd` has momentum and half of the state; `muon`
    orthogonalizes the momentum of each matrix, and is Adam for embeddings, the output layer, norms and biases."""
    lr: Annotated[PositiveNumber, resume.RATE, AlsoCalled("learning_rate max_lr peak_lr"), MegatronFlag()]
    """Peak learning rate."""
    min_lr: Annotated[NonNegative, resume.RATE, AlsoCalled("lr_min"), MegatronFlag()] = 0.0
    """Learning rate at the end of the decay."""
    decoupled_lr: Annotated[PositiveNumber | None, resume.decoupled_rate, MegatronFlag()] = None
    """Peak learning rate of the word embeddings and the output layer; `lr` by default."""
    decoupled_min_lr: Annotated[NonNegative | None, resume.RATE, MegatronFlag()] = None
    """Their learning rate at the end of the decay; `min_lr` by default."""
    weight_decay: Annotated[NonNegative, AlsoCalled("wd"), MegatronFlag()] = 0.01
    """Weight decay: decoupled with `adam` and `muon`, added to the gradient (L2) with `sgd`."""
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
    """adam, muon: decay the weights themselves (AdamW); false adds the decay to the gradient (L2), as in the original
    Adam."""
    adam_beta1: Annotated[Beta, AlsoCalled("beta1 betas"), MegatronFlag(only=_ADAM)] = 0.9
    """adam, and what `muon` does not orthogonalize: decay of the first moment."""
    adam_beta2: Annotated[Beta, AlsoCalled("beta2 betas"), MegatronFlag(only=_ADAM)] = 0.999
    """adam, and what `muon` does not orthogonalize: decay of the second moment."""
    adam_eps: Annotated[PositiveNumber, AlsoCalled("eps adam_epsilon"), MegatronFlag(only=_ADAM)] = 1e-8
    """adam, and what `muon` does not orthogonalize: added to the root of the second moment."""
    exp_avg_dtype: Annotated[
        MomentDtype, resume.ROUNDING, HashedIfChanged(), AlsoCalled("optimizer_state_dtype moments_dtype")
    ] = "fp32"
    """adam: dtype in which the first moment is kept; it is updated in fp32, and rounded."""
    exp_avg_sq_dtype: Annotated[
        MomentDtype, resume.ROUNDING, HashedIfChanged(), AlsoCalled("optimizer_state_dtype moments_dtype")
    ] = "fp32"
    """adam: likewise of the second moment. bf16 has 8 bits, so that it needs `adam_beta2` below 0.996: smaller changes
    are rounded away."""
    offload_fraction: Annotated[
        Fraction,
        resume.safe("only where the state lies between updates changes"),
        HashedIfChanged(),
        AlsoCalled("optimizer_cpu_offload optimizer_offload_fraction offload_optimizer cpu_offload"),
    ] = 0.0
    """adam: part of the state that is in host memory, with the fp32 copies of the weights: 1 for all of it. It goes to
    the GPU in blocks for each update, while the block before it is updated and goes back."""
    sgd_momentum: Annotated[Beta, resume.momentum, AlsoCalled("momentum"), MegatronFlag(only=_SGD)] = 0.9
    """sgd: decay of the momentum; 0 means no momentum and no state."""
    muon_momentum: Annotated[Beta, HashedIfChanged(), resume.UPDATE, MegatronFlag(default=0.9, only=_MUON)] = 0.95
    """muon: decay of the momentum."""
    muon_use_nesterov: Annotated[
        bool, HashedIfChanged(), resume.UPDATE, MegatronFlag(default=False, only=_MUON, old_names=("muon-nesterov",))
    ] = True
    """muon: Nesterov's momentum."""
    muon_num_ns_steps: Annotated[Positive, HashedIfChanged(), resume.UPDATE, MegatronFlag(only=_MUON)] = 5
    """muon: Newton-Schulz iterations, which orthogonalize a matrix."""
    muon_coefficient_type: Annotated[
        Literal["simple", "quintic"], HashedIfChanged(), resume.UPDATE, MegatronFlag(only=_MUON)
    ] = "quintic"
    """muon: coefficients of the iterations: `simple` are the same in each, `quintic` are five in turn."""
    muon_scale_mode: Annotated[
        Literal["spectral", "unit_rms_norm", "shape_scaling"],
        HashedIfChanged(),
        resume.UPDATE,
        MegatronFlag(only=_MUON),
    ] = "spectral"
    """muon: scale of an orthogonal matrix of r rows and c columns: `spectral` sqrt(max(r, c)), `unit_rms_norm`
    sqrt(r / c), `shape_scaling` sqrt(max(1, r / c))."""
    muon_extra_scale_factor: Annotated[
        PositiveNumber, HashedIfChanged(), resume.UPDATE, MegatronFlag(default=1.0, only=_MUON)
    ] = 0.2
    """muon: multiplies this scale. With `spectral`, 0.2 makes updates as large as Adam's, so that Adam's learning rate
    fits."""
    muon_split_qkv: Annotated[bool, HashedIfChanged(), resume.UPDATE, MegatronFlag("muon-no-split-qkv", only=_MUON)] = (
        True
    )
    """muon: orthogonalize queries, keys and values apart, rather than the matrix that holds them all."""
    clip_grad: Annotated[
        NonNegative,
        AlsoCalled(
            "grad_clip gradient_clipping gradient_clip_val max_grad_norm max_norm megatron_lm_gradient_clipping"
        ),
        MegatronFlag(),
    ] = 1.0
    """Largest global L2 norm of the gradient; 0 turns clipping off."""

    @property
    def kind(self) -> OptimizerKind:
        """What is true of it, whatever its hyperparameters."""
        return OPTIMIZERS[self.name]

    @property
    def moments(self) -> tuple[str, ...]:
        """Tensors of state of a parameter, beside the main copy of the weights: Adam's two moments, SGD's momentum.
        With Muon those of what it does not orthogonalize.
        """
        return self.kind.moments if self.kind.has_second_moment or self.sgd_momentum > 0 else ()

    @property
    def state_tensors(self) -> int:
        """How many these are."""
        return len(self.moments)

    @property
    def state_bytes(self) -> int:
        """Bytes per parameter of these tensors."""
        narrow = sum(_BYTES["fp32"] - _BYTES[dtype] for dtype in (self.exp_avg_dtype, self.exp_avg_sq_dtype))
        return _BYTES["fp32"] * self.state_tensors - narrow

    @property
    def narrow_moments(self) -> int:
        """How many of Adam's moments are in 16 bits."""
        return (self.exp_avg_dtype, self.exp_avg_sq_dtype).count("bf16")

    @property
    def weight_decays(self) -> tuple[float, float]:
        """Weight decay at the first step and at the end."""
        if self.weight_decay_incr_style == "constant":
            return self.weight_decay, self.weight_decay
        return self.start_weight_decay or 0.0, self.end_weight_decay or 0.0
