"""Fully sharded data parallelism: what of whole weights and gradients is in memory at each moment of a step.

Of the layers, those that compute, are gathered ahead, or whose gradients are being summed; what is in no layer is whole
in all passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.kernel_selection.data_parallel import overlaps_gathering, overlaps_reduction
from orchestrator.models.blocks.base import FP32
from orchestrator.models.layers import layers, prediction_layers
from orchestrator.planning.layout.chunk_layers import kinds_of
from orchestrator.planning.memory.optimizer_state import shard
from orchestrator.planning.parameters.layer import degrees_of, expert_parameters, layer_parameters
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES


class WholeWeights(NamedTuple):
    """Parameters of a rank, counted whole, and what it holds of each in bytes."""

    outside: int
    """In no layer: embeddings, the last norm, the output layer."""
    layer: int
    """Of the largest layer."""
    layer_shard: int
    """What a rank keeps of it: the sums of its gradients come into a tensor of their own."""
    num_layers: int
    weight: int
    gradient: int
    gathered: int
    """Layers whose weights are here at once in a backward pass."""
    overlaps: bool
    """Whether gradients of one are summed while those of the next are computed."""

    def moments(self, moment: str, held: dict[str, int], kept: int) -> Iterator[tuple[str, dict[str, int]]]:
        """A moment of a step with the weights and gradients that are whole then, by part; a backward pass has two.
        `held`: what is held then beside them; `kept`: what a layer keeps for its backward pass.
        """
        if moment == "optimizer":
            yield moment, held
        elif moment == "start":
            # A layer at a time its weights are drawn, in fp32, and go into a bucket.
            yield moment, {**held, "temporary": max(self.outside, self.layer) * (self.weight + FP32)}
        elif moment == "embedding":
            yield moment, self._with(held, 0, self.layer + self.layer_shard)
        elif moment == "backward":
            yield moment, self._with(held, self.gathered, self.layer)
            if self.overlaps and self.num_layers > 1:  # a layer has ended, and its gradients are being summed
                less = {**held, "activations": held["activations"] - kept}
                yield moment, self._with(less, self.gathered, 2 * self.layer + self.layer_shard)
        else:
            yield moment, self._with(held, 1, 0)

    def _with(self, held: dict[str, int], layers: int, gradients: int) -> dict[str, int]:
        """The weights of so many layers, and so many gradients, with what is in no layer."""
        weights = held["weights"] + (self.outside + layers * self.layer) * self.weight
        return {**held, "weights": weights, "gradients": held["gradients"] + (self.outside + gradients) * self.gradient}


def whole_weights(job: JobSpec, parameters: int) -> WholeWeights:
    """Of a job that is fully sharded. `parameters`: of a rank, counted whole."""
    model, degrees = job.model, degrees_of(job.parallelism)
    kinds = kinds_of((*layers(model), *prediction_layers(model)))
    held = {layer: layer_parameters(model, degrees, layer) for layer, _ in kinds}
    largest, num_layers = max(held, key=held.__getitem__), sum(count for _, count in kinds)
    recomputed_at_once = 1
    if job.runtime.recompute_granularity == "full" and job.runtime.recompute_method == "uniform":
        recomputed_at_once = job.runtime.recompute_num_layers or 1
    ahead = int(overlaps_gathering(job, captured=False))
    return WholeWeights(
        outside=parameters - sum(count * held[layer] for layer, count in kinds),
        layer=held[largest],
        layer_shard=shard(job, held[largest], expert_parameters(model, degrees, largest), 1),
        num_layers=num_layers,
        weight=DTYPE_BYTES[job.precision.dtype],
        gradient=FP32 if job.precision.grad_reduce_in_fp32 else DTYPE_BYTES[job.precision.dtype],
        gathered=min(num_layers, recomputed_at_once + ahead),
        overlaps=overlaps_reduction(job, captured=False),
    )
