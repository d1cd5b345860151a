"""What a family's table is made of. A table is read in both directions; it is data, and needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from orchestrator.models.blocks.registry import GROUPED_QUERY
from orchestrator.models.blocks.weights import Rule
from orchestrator.models.image_encoders import ImageEncoderName
from orchestrator.models.layers import layers, layers_differ, prediction_layers
from orchestrator.spec.model import ModelSpec

ENCODER, DECODER, VISION = "encoder.layers.", "decoder.layers.", "vision.block.layers."
"""Keys that begin so hold the weights of all layers, one after the other along their first dimension."""
FURTHER, FURTHER_LAYER = "mtp.layers.", "transformer_layer."
"""What keys of layers that predict further tokens begin with, before their number; and behind it those of the layer
that is as the last one.
"""

MXFP4, FP8 = "mxfp4", "fp8"
"""Of `quantization_config.quant_method` in config.json."""


class Weight(NamedTuple):
    """A rule at work: one weight of ours, and the tensors there that it is made of."""

    rule: Rule
    place: tuple[int, ...]
    """Where it is along the first dimensions of its key: of its layer, and of its expert."""
    within: tuple[int, ...]
    """How many there are along these."""
    theirs: tuple[str, ...]

    @property
    def is_first(self) -> bool:
        """Whether no other one before it is a part of the same tensors there, as of experts that are stacked."""
        return not self.rule.stacked or self.place[-1] == 0

    @property
    def stacked(self) -> tuple[int, ...]:
        """What their tensors have before its own dimensions."""
        return self.within[-1:] if self.rule.stacked else ()


class OneOf(NamedTuple):
    """Several values of a field that a family takes alike; the first is that of an import."""

    values: tuple[Any, ...]


Said: TypeAlias = Callable[[str], Any]
"""What config.json says of a key, or what transformers takes where it says nothing."""


@dataclass(frozen=True)
class Derived:
    """Keys of config.json and fields of `model` that follow from each other otherwise than by having one value."""

    fields: tuple[str, ...]
    keys: tuple[str, ...]
    to_fields: Callable[[Said, dict[str, Any]], dict[str, Any]]
    """From the keys, and from the fields that are known before. Raises UserError where the two are not one network."""
    to_keys: Callable[[ModelSpec], dict[str, Any] | None]
    """From a model, with experts where the family has some; None where the keys cannot say it."""


class SameAs(NamedTuple):
    """Where a key of config.json is missing: what another one says."""

    key: str


class ImageConfig(NamedTuple):
    """What config.json of a family that sees says of images, and where it says it of the decoder."""

    type: ImageEncoderName
    """`model.vision.type`."""
    keys: frozenset[str]
    """The keys of config.json that are read, beside the family's constants."""
    to_text: Callable[[Mapping[str, Any]], dict[str, Any]]
    """What config.json says of the decoder."""
    to_config: Callable[[ModelSpec, Mapping[str, Any]], dict[str, Any]]
    """What config.json says, beside constants, of a model, from what is said of its decoder."""
    to_vision: Callable[[Mapping[str, Any]], dict[str, Any]]
    """`model.vision`, from config.json. Raises UserError with what we cannot represent."""
    image_id: str
    """The key for the id of the token that stands for images."""
    other_ids: Mapping[str, str]
    """Other special tokens -> the keys for their ids."""
    nests: bool
    """The decoder's keys are in `text_config`; else beside those of images."""


class TextPart(NamedTuple):
    """How config.json of a family that sees, and of which the decoder alone is read, speaks of that."""

    to_text: Callable[[Mapping[str, Any]], dict[str, Any]]
    """What is said of it, in `text_config`."""
    keys: frozenset[str]
    """The keys beside it that are read, or do nothing to it."""
    left_out: str
    """The key of what is not read."""


@dataclass(frozen=True)
class Family:
    """A model of transformers."""

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
    """Field of `model` -> the only value, or a `OneOf`, with which the two are one network."""
    constants: Mapping[str, Any]
    """Key of config.json -> the only value with which they are; one that is missing there counts as this. Of those that
    are true, false or nothing it only counts whether they are true."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Key of config.json -> what transformers takes where it is missing, or `SameAs` another key."""
    activations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our activation -> its names there; the first is written."""
    activation_key: str = "hidden_act"
    rotary: bool = True
    buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    """Ends of the names of what some files hold and is no weight."""
    positions: str | None = "max_position_embeddings"
    """Key of config.json for the longest sequence; None where it has none."""
    imported: Mapping[str, Any] = field(default_factory=dict)
    """Field of `model` -> what an import writes there, and config.json says nothing of."""
    repeated: Mapping[str, str] = field(default_factory=dict)
    """Key of config.json -> another one, of which it has the value; either may be missing."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Key of config.json -> the one that transformers takes it for; where both stand they must be equal."""
    implied: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Key of config.json -> its only value for each name of an activation; it may be missing."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """Key of config.json -> what an export writes there, in place of a default that not every network can have."""
    ignored: frozenset[str] = frozenset()
    """Keys of config.json that do nothing to a network of this family, and may to one of another."""
    generates: bool = True
    """Whether it continues a text."""
    heads: tuple[str, ...] = ("lm_head.",)
    """Names that begin so never have the base before them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """How names end in files of old versions -> how they end now."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """How names begin in files of other versions -> how they begin in the table; one after the other."""
    told_by: str | None = None
    """Of families of one `model_type`: how a weight that only this one has ends."""
    copies: Mapping[str, str] = field(default_factory=lambda: {"lm_head.weight": "model.embed_tokens.weight"})
    """What some files hold a second time -> what it is a copy of."""
    attention: str = GROUPED_QUERY.name
    """The block of `models.blocks` that its layers attend with."""
    decoder: Family | None = None
    """Of one that sees images: its decoder, of which `text_config` in config.json speaks."""
    images: ImageConfig | None = None
    """Of one that sees images: how config.json describes their encoder."""
    text_part: TextPart | None = None
    """Of one that sees images, and of which the decoder alone is read: how config.json speaks of it."""
    unused: Mapping[str, float] = field(default_factory=dict)
    """Vectors of the encoder of images, as wide as it is, that no layer computes with -> their numbers in an export."""
    quantizations: frozenset[str] = frozenset()
    """What `quantization_config` in config.json may say, and is read."""
    longer: str | None = None
    """How names of layers begin of which the encoder of images has the first ones, and the others are left out; of a
    family without one, the decoder."""
    left_out: tuple[str, ...] = ()
    """How names begin of what is left out: an encoder's head that nothing reads."""
    further: tuple[Rule, ...] = ()
    """What a layer that predicts further tokens has in addition to the last layer's, by our keys behind its number.
    There it is numbered as the next layer, but for `further_begin`. Nothing where a family has no such layers."""
    further_begin: str | None = None
    """How names of such layers begin where they are apart from the others, and counted from 0."""
    further_layers: int = 0
    """How many such layers the files have whose config.json says nothing of them."""
    further_copies: Mapping[str, str] = field(default_factory=dict)
    """What such a layer has a second time -> what it is a copy of."""
    derived: tuple[Derived, ...] = ()
    """In the order in which an import reads them."""
    global_interval: int | None = None
    """Where windows alternate with attention to all tokens, every how many-th layer has the latter by default."""
    local_base: int | None = None
    """Where layers with windows have a rotary base of their own, which it is by default."""

    def weights(self, model: ModelSpec) -> Iterator[Weight]:
        """Every weight of a model, in the order in which it is computed."""
        rules = [_by_head(rule, model) for rule in self.rules if _applies(rule, model)]
        blocks = [{block.name for block in layer} for layer in layers(model)]
        for stack, group in groupby(rules, lambda rule: stack_of(rule.ours)):
            of_stack = list(group)
            for layer in range(layers_of(stack, model)) if stack else (None,):
                for rule in of_stack:
                    is_there = rule.only_in is None or rule.only_in in blocks[layer or 0]
                    if is_there and not (layer == 0 and rule.unless_first):
                        yield from _of_layer(rule, layer, model)
        for depth in range(len(prediction_layers(model))):
            yield from self._further_weights(depth, rules, model)

    def _further_weights(self, depth: int, rules: list[Rule], model: ModelSpec) -> Iterator[Weight]:
        blocks = (None, *(block.name for block in layers(model)[-1]))
        alike = (rule for rule in rules if rule.ours.startswith(DECODER) and rule.only_in in blocks)
        begin, number = f"{FURTHER}{depth}.", model.num_layers + depth if self.further_begin is None else depth
        for rule in self.further:
            yield Weight(replace(rule, ours=begin + rule.ours), (), (), tuple(n.format(n=number) for n in rule.theirs))
        for rule in alike:
            ours = f"{begin}{FURTHER_LAYER}{rule.ours.removeprefix(DECODER)}"
            own = replace(rule, ours=ours, theirs=tuple(map(self._further_name, rule.theirs)))
            yield from _by_expert(own, (), (), number, model)

    def _further_name(self, name: str) -> str:
        """That of a weight of such a layer, from that of other layers."""
        return name if self.further_begin is None else self.further_begin + name.removeprefix(self.base)

    def copies_of(self, model: ModelSpec) -> dict[str, str]:
        """What files of a model may hold a second time -> what it is a copy of."""
        return {**self.copies, **self.further_copies_of(model)}

    def further_copies_of(self, model: ModelSpec) -> dict[str, str]:
        """Of that what layers that predict further tokens have, which an export writes too."""
        numbers = range(model.num_layers, model.num_layers + len(prediction_layers(model)))
        tied = {} if model.untie_embeddings_and_output_weights else self.copies
        return {copy.format(n=n): tied.get(of, of) for n in numbers for copy, of in self.further_copies.items()}

    def leaves_out(self, name: str, model: ModelSpec) -> bool:
        """Whether a weight there is one that nothing of a model is computed with."""
        if name.startswith(self.left_out):
            return True
        if self.further_begin is not None and name.startswith(self.further_begin):
            return not prediction_layers(model)
        if self.longer is None or not name.startswith(self.longer):
            return name in self.unused
        number = name.removeprefix(self.longer).partition(".")[0]
        count = (
            layers_of(VISION, model) if self.decoder is not None else model.num_layers + len(prediction_layers(model))
        )
        return number.isdecimal() and int(number) >= count


def only(value: Any) -> Any:
    """The value of a field that an import writes."""
    return value.values[0] if isinstance(value, OneOf) else value


def _applies(rule: Rule, model: ModelSpec) -> bool:
    if rule.only_with is not None and not getattr(model, rule.only_with):
        return False
    return rule.unless is None or not getattr(model, rule.unless)


def _by_head(rule: Rule, model: ModelSpec) -> Rule:
    """With the name of each head's tensor there."""
    if rule.of_heads is None:
        return rule
    heads = range(getattr(model, rule.of_heads))
    return replace(rule, theirs=tuple(name.replace("{h}", str(head)) for name in rule.theirs for head in heads))


def _of_layer(rule: Rule, layer: int | None, model: ModelSpec) -> Iterator[Weight]:
    if layer is None:
        yield Weight(rule, (), (), rule.theirs)
        return
    stack = stack_of(rule.ours)
    place: tuple[int, ...] = (layer,)
    within: tuple[int, ...] = (layers_of(stack, model),)
    if stack != VISION and layers_differ(model):
        rule = replace(rule, ours=f"{stack}{layer}.{rule.ours.removeprefix(stack)}")
        place, within = (), ()
    yield from _by_expert(rule, place, within, layer, model)


def _by_expert(
    rule: Rule, place: tuple[int, ...], within: tuple[int, ...], layer: int, model: ModelSpec
) -> Iterator[Weight]:
    """A weight of a layer, or that of each of its experts."""
    if not rule.of_experts:
        yield Weight(rule, place, within, tuple(name.format(n=layer) for name in rule.theirs))
        return
    count = model.expert_count
    for expert in range(count):
        theirs = tuple(name.format(n=layer, e=expert) for name in rule.theirs)
        yield Weight(rule, (*place, expert), (*within, count), theirs)


def stack_of(key: str) -> str:
    """What a key of a weight of every layer begins with; nothing for others."""
    return next((stack for stack in (ENCODER, DECODER, VISION) if key.startswith(stack)), "")


def layers_of(stack: str, model: ModelSpec) -> int:
    """How many layers a stack has."""
    if stack == VISION:
        return model.image_encoder.num_layers
    return model.encoder_layers if stack == ENCODER else model.decoder_layers
