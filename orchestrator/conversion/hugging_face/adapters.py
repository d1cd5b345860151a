"""Low-rank adapters of a checkpoint: beside which weights they stand, and what these are with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from orchestrator.conversion.shapes import shape_of
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.conversion.weight_mapping import Weight
from orchestrator.spec.model import ModelSpec


@dataclass(frozen=True)
class Adapter:
    """The keys of its two matrices, and their shapes in one layer: [rank, in] and [out, rank]."""

    a: str
    b: str
    a_shape: tuple[int, int]
    b_shape: tuple[int, int]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {self.a: self.a_shape, self.b: self.b_shape}


def adapter_of(key: str, model: ModelSpec) -> Adapter | None:
    """What stands beside a weight of a model; None where nothing does."""
    module, _, kind = key.rpartition(".")
    if kind != "weight" or module.rpartition(".")[2] not in model.adapted_modules:
        return None
    rank = model.adapters.rank
    outputs, inputs = shape_of(key, model, rows=0)
    return Adapter(f"{module}.lora.a", f"{module}.lora.b", (rank, inputs), (outputs, rank))


def adapted(weight: Weight, weights: StoredWeights, model: ModelSpec) -> torch.Tensor:
    """A weight with what its adapter adds, in fp32; one that has no adapter as it is stored.

    The sum is the one that generation makes: rounded to the format of the weights, it is the same to the last bit.
    """
    first, *others = (weights.read(key, weight.place) for key in weight.rule.keys)
    stored = torch.cat([first, *others]) if others else first
    adapter = adapter_of(weight.rule.ours, model)
    if adapter is None:
        return stored
    a, b = weights.read(adapter.a, weight.place), weights.read(adapter.b, weight.place)
    return (b.float() @ a.float()).mul_(model.adapters.scale).add_(stored)
