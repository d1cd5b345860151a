"""What a step waits for weights that are gathered layer by layer, and for gradients that are summed so: fully sharded
data parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.models.layers import layers, prediction_layers
from orchestrator.planning.time.communication import Group
from orchestrator.planning.time.passes import Pass
from orchestrator.planning.time.setting import Setting


def sharded_weights_seconds(
    setting: Setting, shared_out: Sequence[tuple[Group, int]], outside: int, passes: Pass
) -> float:
    """`shared_out`: groups of ranks, each with how many of the layers' parameters it shares out; `outside`: parameters
    in no layer, which the first group does; `passes`: over a micro-batch.

    In each micro-batch the layers' weights are gathered for the forward pass and again for the backward pass, one layer
    ahead, and gradients are summed beside the layer that follows. The first layer of a pass has nothing to hide behind.
    What is in no layer is gathered before the first micro-batch and summed behind the last.
    """
    job, degrees = setting.job, setting.job.parallelism
    count = len(layers(job.model)) + len(prediction_layers(job.model))
    gathering = sum(count * group.gather_seconds(each * setting.size / count) for group, each in shared_out)
    reduction = sum(count * group.gather_seconds(each * setting.gradient_size / count) for group, each in shared_out)
    first = shared_out[0][0]
    forward, backward = sum(passes.forward.values()), sum(passes.backward.values())
    ahead = behind = 0.0
    exposed = 0.0
    if degrees.overlaps_param_gather:
        ahead, behind = gathering, gathering
    else:
        exposed += 2 * gathering
    if degrees.overlap_grad_reduce:
        behind += reduction
    else:
        exposed += reduction
    waiting = exposed + _beside(first, ahead, forward, count) + _beside(first, behind, backward, count)
    # The gradients of each layer are set to zero, and their sums added to those that a rank keeps.
    parameters = sum(each for _, each in shared_out)
    waiting += setting.streaming(parameters * setting.gradient_size)
    waiting += setting.streaming(sum(3 * each / group.size for group, each in shared_out) * setting.gradient_size)
    ends = first.gather_seconds(outside * setting.size) + first.gather_seconds(outside * setting.gradient_size)
    return job.num_micro_batches * waiting + ends


def _beside(group: Group, seconds: float, window: float, layers: int) -> float:
    return seconds / layers + group.hidden(seconds * (1 - 1 / layers), window * (1 - 1 / layers))
