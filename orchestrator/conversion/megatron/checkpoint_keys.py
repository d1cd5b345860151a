"""Where each tensor of ours lies in a checkpoint of Megatron-LM, and each of Megatron-LM's in one of ours: the keys are
the same but for three things. Needs no torch.

- Some blocks' norms have other names there (`StoredKey` of their flags), some with --transformer-impl local alone.
- With a --moe-layer-freq of more than one number every layer has keys of its own, also where all layers have experts.
- A release that does not store `chained_optim_avoid_prefix` numbers the optimizers of dense weights and of experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.conversion.megatron import bert_and_t5
from orchestrator.conversion.shapes import weights_of
from orchestrator.conversion.weight_mapping import DECODER
from orchestrator.models.blocks.experts.weights import WITHOUT_GRADIENT
from orchestrator.models.blocks.registry import block_flags
from orchestrator.models.layers import layers_differ
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.optimizer import OptimizerSpec

Shapes = Mapping[str, tuple[int, ...]]
_OF_BLOCKS = tuple(flags.arguments for flags in block_flags() if flags.arguments is not None)
_RENAMED = tuple(each for each in _OF_BLOCKS if each.keys)
_CHAINED = re.compile(r"chained_\d+\.(?=optimizer\.)")
_OF_LAYER = re.compile(r"(?P<stack>.*decoder\.layers\.)(?P<number>\d+)\.(?P<name>.*)")
_OBJECT = re.compile(r"(?P<name>.*)/shard_(?P<place>[\d.]+)_(?P<within>[\d.]+)")


@dataclass(frozen=True)
class Source:
    """A stored tensor, or its part at a place along its first dimensions."""

    key: str
    place: tuple[int, ...] = ()


Sources = Mapping[str, tuple[Source, ...]]
"""Of each key what is stored of it; several are stacked along a new first dimension."""


def wanted_tensors(job: JobSpec, rows: int, *, with_optimizer: bool) -> dict[str, tuple[int, ...]]:
    """What a run begins with, as this writes it: the weights, and what a distributed optimizer keeps of them.
    `rows`: of the embedding.
    """
    weights = weights_of(job.model, rows)
    return {**weights, **(_states(weights, job.optimizer) if with_optimizer else {})}


def _states(weights: Shapes, spec: OptimizerSpec) -> dict[str, tuple[int, ...]]:
    names = ("param", *spec.moments)
    trained = {key: shape for key, shape in weights.items() if not key.endswith(WITHOUT_GRADIENT)}
    return {f"optimizer.state.{name}.{key}": shape for name in names for key, shape in trained.items()}


def find_sources(wanted: Shapes, stored: Shapes) -> tuple[dict[str, tuple[Source, ...]], list[str]]:
    """Where each wanted tensor is stored, and the keys of those that are not, or have another shape."""
    names = {_CHAINED.sub("", key): key for key in stored}
    found: dict[str, tuple[Source, ...]] = {}
    missing: list[str] = []
    for key, shape in wanted.items():
        sources = _sources(key, shape, names, stored)
        if sources is None:
            missing.append(key)
        else:
            found[key] = sources
    return found, missing


def _sources(key: str, shape: tuple[int, ...], names: Mapping[str, str], stored: Shapes) -> tuple[Source, ...] | None:
    for name in (key, *_other_names(key), *bert_and_t5.other_names(key)):
        if name in names and stored[names[name]] == shape:
            return (Source(names[name]),)
        stack, _, rest = name.partition(DECODER)
        layers = [f"{stack}{DECODER}{number}.{rest}" for number in range(shape[0])] if rest else []
        if layers and all(each in names and stored[names[each]] == shape[1:] for each in layers):
            return tuple(Source(names[each]) for each in layers)
    return None


def _other_names(key: str) -> Iterator[str]:
    """Under what a weight of a block, or the optimizer's state of it, may be stored there beside its own key."""
    for part in (part for each in _RENAMED for part in each.keys):
        if part.ours in key:
            yield from (key.replace(part.ours, part.theirs), key.replace(part.ours, part.local))


def unread(found: Sources, stored: Iterable[str]) -> list[str]:
    """The stored keys that nothing is found in."""
    read = {source.key for sources in found.values() for source in sources}
    return sorted(key for key in set(stored) - read if not bert_and_t5.is_copy(key))


def numbers_layers(model: ModelSpec) -> bool:
    """Whether Megatron-LM stores every layer by itself, of a job that is rendered for it."""
    return layers_differ(model) or model.moe_layer_freq != 1


def names_there(stored: Shapes, model: ModelSpec, *, local: bool) -> dict[str, tuple[Source, ...]]:
    """Each tensor that Megatron-LM has of a checkpoint of ours, by its key there. `local`: of its layers that are not
    Transformer Engine's.
    """
    found: dict[str, tuple[Source, ...]] = {}
    renamed = [each for each in _RENAMED if getattr(model, each.has)]
    local = local and all(each.has_local_layers for each in _OF_BLOCKS if getattr(model, each.has))
    parts = [part for each in renamed for part in each.keys]
    for key, shape in stored.items():
        name = _CHAINED.sub("", key)
        for part in parts:
            name = name.replace(part.ours, part.local if local else part.theirs)
        stack, _, rest = name.partition(DECODER)
        if rest and numbers_layers(model) and not rest[0].isdigit():
            found |= {f"{stack}{DECODER}{number}.{rest}": (Source(key, (number,)),) for number in range(shape[0])}
        else:
            found |= {there: (Source(key),) for there in bert_and_t5.names_there(name, model.family)}
    return found


def objects_there(keys: Iterable[str], model: ModelSpec) -> dict[str, str]:
    """Of each object that Megatron-LM has beside the weights of a checkpoint of ours, the key here."""
    states = [state for each in _RENAMED if getattr(model, each.has) for state in each.states.items()]
    found = {there: key for key in keys for there in bert_and_t5.names_there(key, model.family)}
    found |= {key.replace(ours, theirs): key for key in keys for theirs, ours in states if ours in key}
    return {numbered_object(there): key for there, key in found.items()} if numbers_layers(model) else found


def stacked_object(key: str, layers: int) -> str:
    """The key of an object beside a layer's weights where those of all layers are one tensor."""
    placed = _OBJECT.fullmatch(key)
    of_layer = _OF_LAYER.fullmatch(placed["name"]) if placed is not None else None
    if placed is None or of_layer is None:
        return key
    alone = placed["within"] == "1"
    places, counts = ([], []) if alone else (placed[part].split(".") for part in ("place", "within"))
    where, among = ".".join([of_layer["number"], *places]), ".".join([str(layers), *counts])
    return f"{of_layer['stack']}{of_layer['name']}/shard_{where}_{among}"


def numbered_object(key: str) -> str:
    """The key of an object beside the weights of all layers where every layer has its own."""
    placed = _OBJECT.fullmatch(key)
    stack, _, name = placed["name"].partition(DECODER) if placed is not None else ("", "", "")
    if placed is None or not name or name[0].isdigit():
        return key
    [number, *places], [_, *counts] = placed["place"].split("."), placed["within"].split(".")
    where, among = ".".join(places or ["0"]), ".".join(counts or ["1"])
    return f"{stack}{DECODER}{number}.{name}/shard_{where}_{among}"
