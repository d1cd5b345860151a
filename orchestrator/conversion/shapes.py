"""The shape of each weight of a model, whole, as a checkpoint holds it for one layer or expert; and a decoder's all."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.conversion.native_resolution import shape_of_native
from orchestrator.conversion.weight_mapping import (
    DECODER,
    ENCODER,
    FURTHER,
    FURTHER_LAYER,
    VISION,
    Weight,
    stack_of,
)
from orchestrator.models.blocks.block import Branch
from orchestrator.models.blocks.experts.weights import OF_EACH
from orchestrator.models.blocks.grouped_query_attention.parameters import cross_matrices
from orchestrator.models.blocks.registry import MULTI_TOKEN_PREDICTION, RESIDUAL_STREAM
from orchestrator.models.blocks.weights import Shapes, linears, norm
from orchestrator.models.layers import Layer, blocks_in_layers, layers, layers_differ
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec


def shapes_of_weight(weight: Weight, model: ModelSpec, rows: int) -> dict[str, tuple[int, ...]]:
    """Of each tensor that a checkpoint holds of it, by its key."""
    return {key: shape_of(key, model, rows) for key in weight.rule.keys}


def shape_of(key: str, model: ModelSpec, rows: int) -> tuple[int, ...]:
    """Of a key of a table, without the dimensions of layers and experts; `rows` is how many tables of tokens have."""
    if key.startswith("vision.") and model.has_vision:
        shape = shape_of_native if model.image_encoder.kind.keeps_shape else _of_vision
        return shape(key, model.image_encoder, model.hidden_size)
    if key.startswith(FURTHER):
        return _of_further(key, model, rows)
    hidden, name = model.hidden_size, key.removeprefix(stack_of(key))
    number, dot, rest = name.partition(".")
    if dot and number.isdecimal():
        name = rest
    blocks = [block for block in blocks_in_layers(model) if name.startswith(block.prefix)]
    if blocks:
        shapes = {key: shape for block in blocks for key, shape in block.weights.weights(model).items()}
        return shapes[name.removeprefix(blocks[0].prefix)]
    if name.startswith(_CROSS_ATTENTION):
        return linears(cross_matrices(model))[name.removeprefix(_CROSS_ATTENTION)]
    if name.rpartition(".")[0].endswith(("_layernorm", "layer_norm")) or "layer_norm_" in name:
        return (hidden,)
    buckets = (model.relative_attention_num_buckets, model.num_attention_heads)
    name, _, kind = name.rpartition(".")
    matrix = {
        "embedding.word_embeddings": (rows, hidden),
        "output_layer": (rows, hidden),
        "embedding.position_embeddings": (model.positions, hidden),
        "embedding.tokentype_embeddings": (model.tokentypes, hidden),
        "lm_head.dense": (hidden, hidden),
        "pooler.dense": (hidden, hidden),
        "binary_head": (2, hidden),
        "encoder_relative_attention_bias": buckets,
        "decoder_relative_attention_bias": buckets,
    }[name]
    return matrix if kind == "weight" else matrix[:1]


def _of_further(key: str, model: ModelSpec, rows: int) -> tuple[int, ...]:
    """Of a key of a layer that predicts further tokens."""
    name = key.removeprefix(FURTHER).partition(".")[2]
    if name.startswith(FURTHER_LAYER):
        return shape_of(DECODER + name.removeprefix(FURTHER_LAYER), model, rows)
    return MULTI_TOKEN_PREDICTION.weights.weights(model)[name]


_CROSS_ATTENTION = "cross_attention."
_FIRST_NORM = "self_attention.linear_qkv.layer_norm_"
"""Of the first layer, which a norm of the embeddings is in the place of."""


def decoder_weights(model: ModelSpec, rows: int) -> dict[str, tuple[int, ...]]:
    """The weights of a GPT without adapters and images, by their keys in a checkpoint, as they are stored: of layers
    that are alike all in one, along its first dimension, and of experts along the next one.
    """
    keys = ["embedding.word_embeddings.weight", *_norm("decoder.final_layernorm.", model)]
    if model.position_embedding_type == "learned_absolute":
        keys.append("embedding.position_embeddings.weight")
    if model.untie_embeddings_and_output_weights:
        keys.append("output_layer.weight")
    found = {key: shape_of(key, model, rows) for key in keys}
    found |= _layers(DECODER, model)
    for depth in range(MULTI_TOKEN_PREDICTION.layers_behind(model)):
        further = {f"{FURTHER_LAYER}{name}": shape for name, shape in _layer(model, layers(model)[-1]).items()}
        further |= MULTI_TOKEN_PREDICTION.weights.weights(model)
        found |= {f"{FURTHER}{depth}.{name}": shape for name, shape in further.items()}
    return found


def _layers(stack: str, model: ModelSpec) -> Shapes:
    """The weights of all layers of a stack that makes up a model."""
    every = layers(model)
    if not layers_differ(model):
        return {f"{stack}{name}": (len(every), *shape) for name, shape in _layer(model, every[0]).items()}
    found = {
        f"{stack}{number}.{name}": shape
        for number, layer in enumerate(every)
        for name, shape in _layer(model, layer).items()
    }
    without = (f"{stack}0.{_FIRST_NORM}",) if model.embedding_norm else ()
    return {key: shape for key, shape in found.items() if not key.startswith(without)}


def _layer(model: ModelSpec, layer: Layer) -> Shapes:
    """The weights of a layer, without what their keys begin with; of experts those of all."""
    first, *others = layer
    found = {**_branch(model, first), **RESIDUAL_STREAM.weights.weights(model)}
    for block in others:
        if block.norm_is_module and model.normalizes_each_input:
            found |= norm("pre_mlp_layernorm.", model, model.hidden_size)
        found |= _branch(model, block)
    return found


def _branch(model: ModelSpec, block: Branch) -> Shapes:
    return {
        f"{block.prefix}{name}": (model.expert_count, *shape) if name.startswith(OF_EACH) else shape
        for name, shape in block.weights.weights(model).items()
    }


def _linear(begin: str, *, has_bias: bool) -> Iterator[str]:
    yield from (f"{begin}weight", f"{begin}bias") if has_bias else (f"{begin}weight",)


def _norm(begin: str, model: ModelSpec) -> Iterator[str]:
    yield from _linear(begin, has_bias=model.has_norm_bias)


def _of_vision(key: str, vision: VisionSpec, hidden: int) -> tuple[int, ...]:
    """Of a key of the encoder of images, or of the matrices behind it."""
    width, side = vision.hidden_size, vision.patch_size
    if "norm" in key or key in ("vision.class_token", "vision.patch_bias"):
        return (width,)
    if key == "vision.patches":
        return (width, 3, side, side)
    if key == "vision.positions":
        return (vision.positions, width)
    name, _, kind = key.removeprefix(VISION).rpartition(".")
    matrix = {
        "self_attention.linear_qkv": (3 * width, width),
        "self_attention.linear_proj": (width, width),
        "mlp.linear_fc1": (vision.ffn_size, width),
        "mlp.linear_fc2": (width, vision.ffn_size),
        "vision.projector.linear": (hidden, width),
        "vision.projector.linear_fc1": (hidden, width),
        "vision.projector.linear_fc2": (hidden, hidden),
    }[name]
    return matrix if kind == "weight" else matrix[:1]


def weights_of(model: ModelSpec, rows: int) -> dict[str, tuple[int, ...]]:
    """As `decoder_weights`, of a GPT, a BERT without a task, or a T5."""
    family = model.family
    if family.is_decoder_only:
        return decoder_weights(model, rows)
    beside = _beside_t5 if family.is_encoder_decoder else _beside_bert
    found = {key: shape_of(key, model, rows) for key in (*_embedding(model), *beside(model))}
    if not family.is_encoder_decoder:
        return found | _layers(ENCODER, model)
    [layer] = set(layers(model))
    for stack, count in ((ENCODER, model.encoder_layers), (DECODER, model.decoder_layers)):
        shapes = {**_layer(model, layer), **(_cross_attention(model) if stack == DECODER else {})}
        found |= {f"{stack}{name}": (count, *shape) for name, shape in shapes.items()}
    return found


def _embedding(model: ModelSpec) -> Iterator[str]:
    yield "embedding.word_embeddings.weight"
    if model.position_embedding_type == "learned_absolute":
        yield "embedding.position_embeddings.weight"
    if model.untie_embeddings_and_output_weights:
        yield "output_layer.weight"


def _beside_bert(model: ModelSpec) -> Iterator[str]:
    if model.tokentypes:
        yield "embedding.tokentype_embeddings.weight"
    if model.normalizes_embeddings:
        yield from _norm("embedding.layer_norm.", model)
    if model.normalizes_inputs:
        yield from _norm("encoder.final_layernorm.", model)
    yield from _linear("lm_head.dense.", has_bias=model.bert_head_bias)
    yield from _norm("lm_head.layer_norm.", model)
    yield "output_layer.bias"
    if model.bert_binary_head:
        yield from _linear("pooler.dense.", has_bias=True)
        yield from _linear("binary_head.", has_bias=True)


def _beside_t5(model: ModelSpec) -> Iterator[str]:
    for half in ("encoder", "decoder"):
        yield from _norm(f"{half}.final_layernorm.", model)
        if model.position_embedding_type == "relative":
            yield f"{half}_relative_attention_bias.weight"
    if model.add_output_bias:
        yield "output_layer.bias"


def _cross_attention(model: ModelSpec) -> Shapes:
    linear = {f"{_CROSS_ATTENTION}{name}": shape for name, shape in linears(cross_matrices(model)).items()}
    return {**norm("pre_cross_attn_layernorm.", model, model.hidden_size), **linear}
