"""The states of an optimizer in the files of ranks: which of them belongs to which weight.

Files number the states, in the order of the parameters in each group: first those that decay, then biases and vectors,
which do not. What shows that states are those of a weight: in 16 bits it is its fp32 copy, rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.exchange.torch_format.names import COPY
from orchestrator.exchange.torch_format.ranks import Rank

MASTER = "param"
MOMENTS = ("exp_avg", "exp_avg_sq")
_HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay", "step")

Parameter = tuple[int, str]
"""A weight of a rank: its chunk and its name."""


class NotWhole(Exception):  # noqa: N818 - it says what the state is
    """Why an optimizer's state cannot be taken over, in words."""


@dataclass(frozen=True)
class RankStates:
    """Of one rank: `param` (fp32), `exp_avg` and `exp_avg_sq` of each weight, and what its groups hold beside them."""

    tensors: dict[Parameter, dict[str, torch.Tensor]]
    groups: list[dict[str, Any]]
    """Of weights that decay, and of those that do not."""
    scaler: dict[str, Any] | None
    """Of the loss, for fp16."""


def states_of(rank: Rank) -> RankStates:
    """Raises NotWhole."""
    stored = rank.optimizer
    if stored is None:
        raise NotWhole("it has none")
    if not isinstance(stored, Mapping):
        raise NotWhole("it is of several optimizers")
    inner = stored.get("optimizer", stored.get("optimizer_state_dict", stored))
    groups = inner.get("param_groups") if isinstance(inner, Mapping) else None
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise NotWhole("it has no groups of parameters")
    if not isinstance(inner.get("state"), dict):
        raise NotWhole("it is a distributed optimizer's, which is bound to the ranks that wrote it")
    masters = stored.get("fp32_from_fp16_params", stored.get("fp32_from_fp16"))
    found: dict[Parameter, dict[str, torch.Tensor]] = {}
    by_decay: list[dict[str, Any]] = [{}, {}]
    for number, (group, decays, parameters) in enumerate(_groups(rank, groups)):
        own = masters[number] if isinstance(masters, list) and number < len(masters) else []
        states = [inner["state"].get(index) for index in group["params"]]
        found |= dict(zip(parameters, _of_group(rank, parameters, states, iter(own)), strict=True))
        step = group.get("step", next((state["step"] for state in states if "step" in state), rank.iteration))
        kept = {name: group[name] for name in _HYPERPARAMETERS if name in group}
        by_decay[0 if decays else 1] = {**kept, "step": int(step)}
    scaler = stored.get("grad_scaler")
    return RankStates(found, by_decay, scaler if isinstance(scaler, dict) else None)


def _groups(rank: Rank, groups: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bool, list[Parameter]]]:
    """Each group with whether its weights decay, and these."""
    named = [(chunk, name) for chunk, weights in enumerate(rank.chunks) for name in _in_order(weights)]
    halves = {
        True: [each for each in named if _decays(rank, each)],
        False: [each for each in named if not _decays(rank, each)],
    }
    filled = [group for group in groups if group.get("params")]
    wanted = [half for half in halves.values() if half]
    if len(filled) != len(wanted):
        raise NotWhole(f"it has {len(filled)} groups of parameters, and {len(wanted)} are known here")
    for group, (decays, parameters) in zip(filled, ((key, half) for key, half in halves.items() if half), strict=True):
        if len(group["params"]) != len(parameters):
            raise NotWhole(f"a group has {len(group['params'])} parameters, and {len(parameters)} are known here")
        yield group, decays, parameters


def _in_order(weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Names in the order of a model's parameters: an older model makes the copy of the embedding before its heads."""
    names = [name for name in weights if name != COPY]
    if COPY in weights:
        heads = next((place for place, name in enumerate(names) if not name.startswith("language_model.")), len(names))
        names.insert(heads, COPY)
    return names


def _decays(rank: Rank, parameter: Parameter) -> bool:
    chunk, name = parameter
    return not name.endswith("bias") and rank.chunks[chunk][name].dim() > 1


def _of_group(
    rank: Rank, parameters: Sequence[Parameter], states: Sequence[Any], masters: Iterator[Any]
) -> Iterator[dict[str, torch.Tensor]]:
    for (chunk, name), state in zip(parameters, states, strict=True):
        weight = rank.chunks[chunk][name]
        master = weight if weight.dtype == torch.float32 else next(masters, None)
        moments = {key: state.get(key) if isinstance(state, dict) else None for key in MOMENTS}
        own: dict[str, torch.Tensor] = {}
        for key, tensor in {MASTER: master, **moments}.items():
            if not isinstance(tensor, torch.Tensor) or tensor.shape != weight.shape:
                raise NotWhole(f"{name} of {rank.path} has no {key} of its shape")
            own[key] = tensor.detach().float()
        if not torch.equal(own[MASTER].to(weight.dtype), weight):
            raise NotWhole(f"the fp32 copy of {name} in {rank.path} is not what the model has")
        yield own
