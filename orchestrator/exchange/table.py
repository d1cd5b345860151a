"""What a family's table is made of. A table is read in both directions; it is data, and needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.spec.model import ModelSpec

LAYERS = "decoder.layers."
"""Keys that begin so hold the weights of all layers, one after the other along their first dimension."""


@dataclass(frozen=True)
class Rule:
    """One weight of ours, or one of every layer, and what it is called there; `{n}` is the layer's number from 0."""

    ours: str
    """Key in a checkpoint."""
    theirs: tuple[str, ...]
    transform: str = "same"
    """A name of `transforms.TRANSFORMS`."""
    untied: bool = False
    """Only where the output layer has its own weights."""


@dataclass(frozen=True)
class Weight:
    """A rule at work: one tensor of ours, and those there that it is made of."""

    rule: Rule
    layer: int | None
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A decoder of transformers."""

    name: str
    """For people."""
    model_type: str
    """In config.json."""
    architecture: str
    """The class that loads it."""
    base: str
    """What their names begin with, which some published files leave out."""
    rules: tuple[Rule, ...]
    sizes: Mapping[str, str]
    """Field of `model` -> key of config.json, where the value is the same."""
    fixed: Mapping[str, Any]
    """Field of `model` -> the only value with which the two are one network."""
    constants: Mapping[str, Any]
    """Key of config.json -> the only value with which they are; one that is missing there counts as this."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Key of config.json -> what transformers takes where it is missing."""
    activations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our activation -> its names there; the first is written."""
    activation_key: str = "hidden_act"
    rotary: bool = True
    buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    """Ends of the names of what some files hold and is no weight."""

    def weights(self, model: ModelSpec) -> Iterator[Weight]:
        """Every weight of a model, in the order in which it is computed."""
        untied = model.untie_embeddings_and_output_weights
        rules = [rule for rule in self.rules if untied or not rule.untied]
        in_layers = [rule for rule in rules if rule.ours.startswith(LAYERS)]
        first = next(place for place, rule in enumerate(rules) if rule in in_layers)
        for rule in rules[:first]:
            yield Weight(rule, None, rule.theirs)
        for layer in range(model.num_layers):
            for rule in in_layers:
                yield Weight(rule, layer, tuple(name.format(n=layer) for name in rule.theirs))
        for rule in rules[first + len(in_layers) :]:
            yield Weight(rule, None, rule.theirs)
