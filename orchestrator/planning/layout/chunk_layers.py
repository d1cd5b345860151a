"""Which layers, by their blocks, each model chunk has, and so how many of a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from orchestrator.models.blocks.block import Branch
from orchestrator.models.layers import Layer, layers, prediction_layers
from orchestrator.planning.layout.topology import layers_of_stages
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec

Kinds = tuple[tuple[Layer, int], ...]
"""Of a model chunk: each kind of its layers, and how many of it."""
Shares = dict[Branch, float]
"""Of the layers of a chunk: which share has each block."""


def kinds_of(every: Iterable[Layer]) -> Kinds:
    """Layers counted by kind."""
    return tuple(Counter(every).items())


def kinds_of_stages(job: JobSpec) -> tuple[tuple[Kinds, ...], ...]:
    """[stage][chunk]: the layers of each, of a model whose layers are all in one row. Those that predict further tokens
    are in the last chunk.
    """
    found = _without_predictions(job)
    if predicting := prediction_layers(job.model):
        *others, last = found
        return (*others, (*last[:-1], (*last[-1], *kinds_of(predicting))))
    return found


def _are_alike(every: Sequence[Layer]) -> bool:
    return every.count(every[0]) == len(every)


def _without_predictions(job: JobSpec) -> tuple[tuple[Kinds, ...], ...]:
    model, degrees = job.model, job.parallelism
    every = layers(model)
    if _are_alike(every):
        return _alike_in_chunks(every[0], layers_of_chunks(model.num_layers, degrees))
    return tuple(
        tuple(kinds_of(every[chunk.first : chunk.last + 1]) for chunk in chunks)
        for chunks in layers_of_stages(model, degrees)
    )


@lru_cache(maxsize=1024)  # every part of an estimate asks, and the tuner makes thousands of them
def _alike_in_chunks(layer: Layer, counts: tuple[tuple[int, ...], ...]) -> tuple[tuple[Kinds, ...], ...]:
    return tuple(tuple(((layer, count),) for count in chunks) for chunks in counts)


def in_stages(job: JobSpec, count_of: Callable[[Layer], int]) -> list[int]:
    """Of each stage the sum over its layers."""
    model, every = job.model, layers(job.model)
    if _are_alike(every) and not prediction_layers(model):
        of_one = count_of(every[0])
        return [of_one * sum(chunks) for chunks in layers_of_chunks(model.num_layers, job.parallelism)]
    in_chunks = kinds_of_stages(job)
    different = {kinds for chunks in in_chunks for kinds in chunks}
    of_layers = {layer: count_of(layer) for layer in {layer for kinds in different for layer, _ in kinds}}
    of_chunks = {kinds: sum(of_layers[layer] * each for layer, each in kinds) for kinds in different}
    return [sum(map(of_chunks.__getitem__, chunks)) for chunks in in_chunks]


def attending(model: ModelSpec, shares: Shares) -> float:
    """Of the layers of a chunk the share whose tokens attend to each other."""
    return sum(share for block, share in shares.items() if block.scores(model) is not None)


def recomputed_norms(shares: Shares) -> float:
    """Norms of a layer, in the mean over a chunk's, that `layernorm` in `runtime.recompute_modules` means."""
    return sum(share for block, share in shares.items() if block.norm_is_recomputed)


def shares_of(kinds: Kinds) -> Shares:
    """Of layers counted by kind."""
    total = max(sum(count for _, count in kinds), 1)
    found: Shares = {}
    for layer, count in kinds:
        for block in layer:
            found[block] = found.get(block, 0.0) + count / total
    return found
