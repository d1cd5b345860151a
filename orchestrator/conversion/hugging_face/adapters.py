"""Low-rank adapters of a checkpoint: beside which weights they stand, and what these are with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.conversion.shapes import shape_of
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.conversion.weight_mapping import Weight
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec


@dataclass(frozen=True)
class Adapter:
    """The keys of its two matrices with their shapes in one layer: [rank, in], and [out, rank], whose rows a checkpoint
    may hold in several tensors.
    """

    a: str
    b: tuple[str, ...]
    shapes: dict[str, tuple[int, int]]

    def read(self, weights: StoredWeights, place: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Both matrices."""
        return weights.read(self.a, place), torch.cat([weights.read(key, place) for key in self.b])


def adapter_of(rule: Rule, model: ModelSpec) -> Adapter | None:
    """What stands beside a weight of a model; None where nothing does."""
    module, _, kind = rule.ours.rpartition(".")
    if kind != "weight" or module.rpartition(".")[2] not in model.adapted_modules:
        return None
    rank, a = model.adapters.rank, f"{module}.lora.a"
    shapes = {a: (rank, shape_of(rule.ours, model, rows=0)[1])}
    for key in rule.keys:
        rows, _ = shape_of(key, model, rows=0)
        shapes[f"{module}.lora.b{key.removeprefix(rule.ours)}"] = (rows, rank)
    return Adapter(a, tuple(key for key in shapes if key != a), shapes)


def adapted(weight: Weight, weights: StoredWeights, model: ModelSpec) -> torch.Tensor:
    """A weight with what its adapter adds, in fp32; one that has no adapter as it is stored.

    The sum is the one that generation makes: rounded to the format of the weights, it is the same to the last bit.
    """
    first, *others = (weights.read(key, weight.place) for key in weight.rule.keys)
    stored = torch.cat([first, *others]) if others else first
    adapter = adapter_of(weight.rule, model)
    if adapter is None:
        return stored
    a, b = adapter.read(weights, weight.place)
    return (b.float() @ a.float()).mul_(model.adapters.scale).add_(stored)
