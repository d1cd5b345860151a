"""The states of an optimizer in the files of ranks: which of them belongs to which weight.

Files number the states, in the order of the parameters in each group: first those that decay, then biases and vectors,
which do not. A distributed optimizer has a file of its own beside each, in which the states of all weights lie one
after the other, the last weight first, with gaps that depend on how it was divided. What shows that states are those of
a weight: in 16 bits it is its fp32 copy, rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.conversion.megatron.torch_format.names import COPY
from orchestrator.conversion.megatron.torch_format.pickles import read_pickle
from orchestrator.conversion.megatron.torch_format.ranks import Rank

MASTER = "param"
MOMENTS = ("exp_avg", "exp_avg_sq")
_DISTRIBUTED = "distrib_optim.pt"
_ALIGNMENT = 64
_NUMBERS = (int, float, torch.Tensor)
_HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")

Parameter = tuple[int, str]
"""A weight of a rank: its chunk and its name."""


class IncompleteState(Exception):  # noqa: N818 - it says what the state is
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
        raise IncompleteState("it has none")
    if not isinstance(stored, Mapping):
        raise IncompleteState("it is of several optimizers")
    inner = stored.get("optimizer", stored.get("optimizer_state_dict", stored))
    groups = inner.get("param_groups") if isinstance(inner, Mapping) else None
    if not isinstance(groups, list) or not all(_is_group(group) for group in groups):
        raise IncompleteState("it has no groups of parameters")
    scaler = stored.get("grad_scaler")
    if not isinstance(scaler, dict) or not all(isinstance(value, _NUMBERS) for value in scaler.values()):
        scaler = None
    if not isinstance(inner.get("state"), dict):
        return RankStates(dict(_of_buffers(rank)), _by_decay(groups, rank.iteration), scaler)
    masters = stored.get("fp32_from_fp16_params", stored.get("fp32_from_fp16"))
    found: dict[Parameter, dict[str, torch.Tensor]] = {}
    by_decay: list[dict[str, Any]] = [{}, {}]
    for number, (group, decays, parameters) in enumerate(_groups(rank, groups)):
        own = masters[number] if isinstance(masters, list) and number < len(masters) else []
        states = [inner["state"].get(index) for index in group["params"]]
        found |= dict(zip(parameters, _of_group(rank, parameters, states, iter(own)), strict=True))
        step = next((state["step"] for state in states if "step" in state), rank.iteration)
        by_decay[0 if decays else 1] = _hyperparameters({"step": step, **group})
    return RankStates(found, by_decay, scaler)


def _by_decay(groups: Sequence[dict[str, Any]], iteration: int) -> list[dict[str, Any]]:
    """Of groups that do not say which parameters are theirs, those of weights that decay and those that do not."""
    halves: list[dict[str, Any]] = [{}, {}]
    for group in groups:
        decays = group.get("wd_mult", group.get("weight_decay"))
        if half := halves[0 if decays else 1]:
            raise IncompleteState(f"it has several groups of parameters with the weight decay of one ({half})")
        halves[0 if decays else 1] = _hyperparameters({"step": iteration, **group})
    return halves


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are numbers; `betas` are two."""
    if not isinstance(group["step"], _NUMBERS):
        raise IncompleteState("it does not say its step")
    said = {name: group[name] for name in _HYPERPARAMETERS if isinstance(group.get(name), (*_NUMBERS, tuple))}
    return {**said, "step": int(group["step"])}


def _is_group(group: Any) -> bool:
    """Whether it is one of torch's, whose parameters are numbered."""
    return isinstance(group, dict) and all(isinstance(index, int) for index in group.get("params", ()))


def _of_buffers(rank: Rank) -> Iterator[tuple[Parameter, dict[str, torch.Tensor]]]:
    """From the file of a distributed optimizer: a buffer for each chunk."""
    path = rank.path.with_name(_DISTRIBUTED)
    if not path.is_file():
        raise IncompleteState(f"it is a distributed optimizer's, and {path} is not there")
    content: Mapping[Any, Any] = read_pickle(path)
    buffers = {key: value for key, value in content.items() if isinstance(key, int)}
    if set(buffers) != set(range(len(rank.chunks))):
        raise IncompleteState(f"{path} has {len(buffers)} buffers for {len(rank.chunks)} chunks")
    for chunk, weights in enumerate(rank.chunks):
        of_types = list(buffers[chunk].values()) if isinstance(buffers[chunk], dict) else []
        flat = of_types[0] if len(of_types) == 1 else None
        kinds = (MASTER, *MOMENTS)
        if not isinstance(flat, dict) or not all(isinstance(flat.get(kind), torch.Tensor) for kind in kinds):
            raise IncompleteState(
                f"{path} has its states in another form than Megatron-LM has had since its release 0.5"
            )
        for name, start in _places(flat[MASTER], weights, path):
            stop, shape = start + weights[name].numel(), weights[name].shape
            yield (chunk, name), {kind: flat[kind][start:stop].view(shape).float() for kind in kinds}


def _places(flat: torch.Tensor, weights: Mapping[str, torch.Tensor], path: Path) -> Iterator[tuple[str, int]]:
    """Where each weight's states begin: where its fp32 copy does. Each bucket is counted from its own beginning, and in
    it weights begin at multiples of 64; before there were gaps, right behind the one before.
    """
    bucket = end = 0
    for name in reversed(_in_order(weights)):
        weight = weights[name]
        aligned = bucket + -(-(end - bucket) // _ALIGNMENT) * _ALIGNMENT
        for start in (aligned, end):
            if torch.equal(flat[start : start + weight.numel()].to(weight.dtype), weight.flatten()):
                break
        else:
            raise IncompleteState(f"the fp32 copy of {name} is not found in {path}")
        bucket = bucket if start == aligned else start
        end = start + weight.numel()
        yield name, start
    if end != len(flat):
        raise IncompleteState(f"{path} holds states of more than the model's weights")


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
        raise IncompleteState(f"it has {len(filled)} groups of parameters, and {len(wanted)} are known here")
    for group, (decays, parameters) in zip(filled, ((key, half) for key, half in halves.items() if half), strict=True):
        if len(group["params"]) != len(parameters):
            raise IncompleteState(
                f"a group has {len(group['params'])} parameters, and {len(parameters)} are known here"
            )
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
                raise IncompleteState(f"{name} of {rank.path} has no {key} of its shape")
            own[key] = tensor.detach().float()
        if not torch.equal(own[MASTER].to(weight.dtype), weight):
            raise IncompleteState(f"the fp32 copy of {name} in {rank.path} is not what the model has")
        yield own
