"""Model FLOPs of layers, as sums over their blocks."""

from __future__ import annotations

from orchestrator.models.blocks.base import Matrix
from orchestrator.models.blocks.block import Branch
from orchestrator.models.blocks.grouped_query_attention.parameters import rotated_layers
from orchestrator.models.layers import layers, prediction_layers
from orchestrator.planning.layout.chunk_layers import kinds_of
from orchestrator.spec.model import ModelSpec


def layers_flops(model: ModelSpec, *, causal: bool = False) -> float:
    """Floating-point operations of forward and backward of all layers over one token, with those that predict
    further tokens. `causal`: as Megatron-LM counts
    them (num_floating_point_operations of its training/training.py).
    """
    kinds = kinds_of((*layers(model), *prediction_layers(model)))
    return sum(count * sum(_block_flops(model, block, causal) for block in layer) for layer, count in kinds)


def _block_flops(model: ModelSpec, block: Branch, causal: bool) -> float:
    matrices = block.parameters.matrices(model)
    routes = any(each.routing is not None for each in matrices)
    # Megatron-LM counts no routers.
    counted = [each for each in matrices if not (causal and routes and each.parallel == "replicated")]
    flops = 6 * sum(_products(each, causal) for each in counted)
    if (scores := block.scores(model)) is not None:
        flops += 6 * model.seq_length * scores.width if causal else 12 * scores.width * attended(model)
    if (scan := block.scan(model)) is not None:
        flops += 3 * scan.flops
    return flops


def _products(matrix: Matrix, causal: bool) -> float:
    """Products of a matrix for each token, a multiplication and an addition each; of experts those that it passes.
    Megatron-LM counts tokens that are dropped too.
    """
    products, routing = matrix.inputs * matrix.outputs, matrix.routing
    if routing is not None:
        return products * routing.chosen * (1 if causal else routing.kept)
    return products


def attended(model: ModelSpec) -> float:
    """The s of attention, the mean over the layers: with a window twice what a token of a decoder sees on average, and
    what one of an encoder sees.
    """
    length, window = model.seq_length, model.sliding_window
    if model.has_chunks:
        rotated = rotated_layers(model)
        return (1 - rotated + rotated * model.share_in_chunks) * length
    if window is None or window >= length:
        return length
    share = model.windowed_layers.count(False) / model.num_layers
    if model.family.is_decoder_only:
        return share * length + (1 - share) * window * (2 - window / length)
    return share * length + (1 - share) * seen_on_both_sides(window, length) * length


def seen_on_both_sides(window: int, length: int) -> float:
    """Share of all pairs of tokens that an encoder's window leaves: all are at most `window` - 1 tokens apart, of which
    the first and the last ones have fewer neighbours.
    """
    return (2 * window - 1 - window * (window - 1) / length) / length
