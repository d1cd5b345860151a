"""Weights by name: in a checkpoint of ours, and in a model of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import Matrix

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields

Shapes = dict[str, tuple[int, ...]]


def linears(matrices: Iterable[Matrix]) -> Shapes:
    """The weights of linear layers, and their biases."""
    found: Shapes = {}
    for each in matrices:
        found[f"{each.name}.weight"] = (each.outputs, each.inputs)
        if each.has_bias:
            found[f"{each.name}.bias"] = (each.outputs,)
    return found


def norm(begin: str, model: Fields, width: int) -> Shapes:
    """Those of a norm, whose names begin so."""
    kinds = ("weight", "bias") if model.has_norm_bias else ("weight",)
    return {f"{begin}{kind}": (width,) for kind in kinds}


@dataclass(frozen=True)
class Rule:
    """One weight of ours, or one of every layer or expert, and what it is called there."""

    ours: str
    """Key in a checkpoint."""
    theirs: tuple[str, ...]
    """`{n}` is the number of the layer, `{e}` that of the expert and `{h}` that of the head, all from 0."""
    transform: str = "same"
    """A name of `transforms.TRANSFORMS`."""
    only_with: str | None = None
    """Only where this field of `model` is set."""
    unless: str | None = None
    """Only where it is not."""
    of_experts: bool = False
    """Keys of experts hold those of all, along their second dimension."""
    of_heads: str | None = None
    """Theirs are of one head each, of as many as this property of `model` says."""
    stacked: bool = False
    """Of experts: theirs are of all experts too, along their first dimension."""
    only_in: str | None = None
    """Only in layers that have this block of `models.blocks`."""
    unless_first: bool = False
    """Not in the first layer."""
    stays_fp32: bool = False
    """Is written in fp32 whatever format the others have."""
    parts: tuple[str, ...] = ()
    """Of a weight whose rows a checkpoint holds in several tensors: how their keys end, in the order of the rows."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all tensors that a checkpoint holds of it."""
        return tuple(f"{self.ours}.{part}" for part in self.parts) or (self.ours,)
