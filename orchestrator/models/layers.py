"""Which blocks each layer of a model is made of: its parameters, FLOPs, memory and time are sums over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from orchestrator.errors import UserError
from orchestrator.models.blocks.base import LayerSetup, Matrix
from orchestrator.models.blocks.block import Block, Branch, PredictionBlock, TokenMixer
from orchestrator.models.blocks.registry import (
    ATTENTIONS,
    BLOCKS,
    EXPERTS,
    GATED_DELTA_NET,
    MLP,
    STATE_SPACE,
    attention_of,
)
from orchestrator.models.layer_pattern import (
    ATTENTION_LETTER,
    EXPERT_LETTER,
    MLP_LETTER,
    STATE_SPACE_LETTER,
    layer_pattern,
)

Layer = tuple[Branch, ...]
"""Its blocks, in the order in which they are computed: each a branch of the residual stream, with a norm before it."""


class Mixer(NamedTuple):
    """What a layer of a hybrid can be."""

    name: str
    """For people."""
    block_of: Callable[[Any], Branch]
    """From the model."""


MIXERS: Final[Mapping[str, Mixer]] = {
    STATE_SPACE_LETTER: Mixer("state space", lambda model: STATE_SPACE),
    ATTENTION_LETTER: Mixer("attention", attention_of),
    MLP_LETTER: Mixer("MLP", lambda model: MLP),
    EXPERT_LETTER: Mixer("experts", lambda model: EXPERTS),
}
"""By megatron-core's letters."""
_PREDICTING: Final = tuple(block for block in BLOCKS if isinstance(block, PredictionBlock))


def layers(model: Any) -> tuple[Layer, ...]:
    """The blocks of each layer. A T5's two halves are models of their own to whom asks this."""
    if model.family.is_hybrid:  # a job that is not legal may have other letters
        return tuple((MIXERS.get(letter, MIXERS[MLP_LETTER]).block_of(model),) for letter in layer_pattern(model))
    return _of_transformer(attention_of(model), model.linear_attention_layers, model.moe_layers)


@cache  # the tuner asks again for each layout
def _of_transformer(attention: Branch, are_linear: tuple[bool, ...], are_routed: tuple[bool, ...]) -> tuple[Layer, ...]:
    kinds = ((attention, MLP), (attention, EXPERTS)), ((GATED_DELTA_NET, MLP), (GATED_DELTA_NET, EXPERTS))
    both = zip(are_linear, are_routed, strict=False)  # of a job that is legal as many
    return tuple(kinds[is_linear][is_routed] for is_linear, is_routed in both)


def mixers_of(model: Any) -> tuple[TokenMixer, ...]:
    """What is in the place of self-attention in each layer of a transformer."""
    attentions = (attention_of(model), GATED_DELTA_NET)
    return tuple(map(attentions.__getitem__, model.linear_attention_layers))


def layer_kinds(model: Any) -> dict[str, int]:
    """How many layers are of each kind, by its name for people; nothing for a transformer whose layers are alike."""
    if model.family.is_hybrid:
        names = [MIXERS[letter].name for letter in layer_pattern(model)]
        return {mixer.name: names.count(mixer.name) for mixer in MIXERS.values() if mixer.name in names}
    mixers = mixers_of(model)
    kinds = (GATED_DELTA_NET, attention_of(model))
    return {block.title: mixers.count(block) for block in kinds} if len(set(mixers)) > 1 else {}


def blocks_of(model: Any) -> tuple[Block, ...]:
    """Its attention, and every block that is none; of these, some may be in no layer of it."""
    return (attention_of(model), *(block for block in BLOCKS if block not in ATTENTIONS))


def blocks_in_layers(model: Any) -> tuple[Branch, ...]:
    """Those that some layers have, each once."""
    return tuple(dict.fromkeys(block for layer in dict.fromkeys(layers(model)) for block in layer))


def settings_of(blocks: Iterable[Block], model: Any, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration that blocks say. Raises UserError where two of them say different things
    of one.
    """
    found: dict[str, Any] = {}
    whose: dict[str, str] = {}
    for block in blocks:
        for name, value in block.settings(model, setup).items():
            if found.setdefault(name, value) != value:
                message = f"{whose[name]} and {block.name} differ in {name}: {found[name]!r} and {value!r}"
                raise UserError(message, code="blocks_differ")
            whose.setdefault(name, block.name)
    return found


def prediction_layers(model: Any) -> tuple[Layer, ...]:
    """The blocks of each layer behind the last one that predicts a further token: one that adds it, and the last
    layer's.
    """
    return tuple((block, *layers(model)[-1]) for block in _PREDICTING for _ in range(block.layers_behind(model)))


def layers_differ(model: Any) -> bool:
    """Whether each layer has keys of its own in a checkpoint, with its number: in a hybrid, where not all are made of
    the same blocks, and where the first one has a norm less.
    """
    return bool(model.family.is_hybrid) or model.embedding_norm or len(set(layers(model))) > 1


def matrices_of(model: Any, layer: Layer) -> tuple[Matrix, ...]:
    """The matrices of a layer, in the order in which they are computed with."""
    return tuple(matrix for block in layer for matrix in block.parameters.matrices(model))


def adapter_targets_of(model: Any) -> tuple[str, ...]:
    """Names of the matrices of a model's layers that low-rank adapters may stand beside."""
    blocks = blocks_in_layers(model)
    names = (
        each.name for block in blocks for each in block.parameters.matrices(model) if each.name in block.adapter_targets
    )
    return tuple(dict.fromkeys(names))
