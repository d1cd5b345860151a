"""Hyperparameters that are legal, and so far from what trainings of transformers have that they are probably slips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.errors import Problem
from orchestrator.spec.job import JobSpec

_PER_STEP = "Adam changes a weight by about lr in each step, and weights begin at about {std:g}"


class _Range(NamedTuple):
    """What is not worth a question, and what is usual, in words."""

    least: float
    most: float
    usual: str
    too_low: str
    too_high: str


_LEARNING_RATES = {
    "adam": _Range(
        *(1e-8, 0.05, "1e-6 to 1e-2"),
        too_low="in single precision such steps hardly change a weight",
        too_high=_PER_STEP + ": the loss diverges",
    ),
    "muon": _Range(
        *(1e-8, 0.5, "1e-5 to 1e-2 with muon_extra_scale_factor 0.2"),
        too_low="in single precision such steps hardly change a weight",
        too_high="a step changes weights by about lr times muon_extra_scale_factor: the loss diverges",
    ),
    "sgd": _Range(
        *(1e-7, 10.0, "1e-3 to 1"),
        too_low="in single precision such steps hardly change a weight",
        too_high="a step is lr times the clipped gradient: the loss diverges",
    ),
}
_WEIGHT_DECAY = _Range(
    0.0, 1.0, "0 to 0.3", "", "each step shrinks every weight by lr times this, which outweighs what it learns"
)
_ADAM_EPS = _Range(0.0, 1e-3, "1e-8 to 1e-5", "", "if it outweighs the gradients, Adam hardly moves")
_STD = _Range(0.0, 0.5, "0.006 to 0.05", "", "activations and the first loss grow with it")
_DROPOUT = _Range(0.0, 0.5, "0 to 0.2", "", "more is dropped than kept")


_HALF_STEP_OF_BF16 = 2**-8
"""Relative, at most: half of the distance between neighbouring numbers."""


def unusual_values(job: JobSpec) -> Iterator[Problem]:
    """A warning for each hyperparameter that is far from what is usual: what is, and what the value would do."""
    optimizer, model = job.optimizer, job.model
    rates = _LEARNING_RATES[optimizer.name]
    checked = (
        ("optimizer.lr", optimizer.lr, rates),
        ("optimizer.decoupled_lr", optimizer.decoupled_lr, rates),
        ("optimizer.weight_decay", optimizer.weight_decay, _WEIGHT_DECAY),
        ("optimizer.start_weight_decay", optimizer.start_weight_decay, _WEIGHT_DECAY),
        ("optimizer.end_weight_decay", optimizer.end_weight_decay, _WEIGHT_DECAY),
        ("optimizer.adam_eps", optimizer.adam_eps, _ADAM_EPS),
        ("model.init_method_std", model.init_method_std, _STD),
        ("model.hidden_dropout", model.hidden_dropout, _DROPOUT),
        ("model.attention_dropout", model.attention_dropout, _DROPOUT),
    )
    if optimizer.exp_avg_sq_dtype == "bf16" and 1 - optimizer.adam_beta2 < _HALF_STEP_OF_BF16:
        message = (
            "bf16 rounds away many changes of the second moment below 1/256, and with adam_beta2 "
            f"{optimizer.adam_beta2:g} a step changes it by about {1 - optimizer.adam_beta2:g} of its value"
        )
        paths = ("optimizer.exp_avg_sq_dtype", "optimizer.adam_beta2")
        yield Problem(message, paths, "write adam_beta2: 0.95, or exp_avg_sq_dtype: fp32")
    if not job.model.splits_experts and job.model.activation != "quick_geglu":
        message = "true, the default, gives experts and routers biases, which of published models only gpt-oss has"
        yield Problem(message, ("model.add_bias_linear", "model.num_experts"), "write add_bias_linear: false")
    for path, value, usual in checked:
        if value is None or usual.least <= value <= usual.most:
            continue
        why = (usual.too_low if value < usual.least else usual.too_high).format(std=model.init_method_std)
        message = (
            f"{value:g} is {'far below' if value < usual.least else 'far above'} the usual values, {usual.usual}: {why}"
        )
        yield Problem(message, (path,), f"write a value in that range, unless {value:g} is intended")
