"""What a step waits for the other replicas: to reduce gradients and gather parameters, as far as that is not hidden."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.kernel_selection.data_parallel import bucket_size
from orchestrator.planning.layout.chunk_layers import in_stages
from orchestrator.planning.parameters.layer import degrees_of, layer_parameters
from orchestrator.planning.time.communication import Group, group_of
from orchestrator.planning.time.passes import Pass
from orchestrator.planning.time.setting import Setting
from orchestrator.planning.time.sharded_weights import sharded_weights_seconds


def data_parallel_seconds(
    setting: Setting, held: Sequence[int], experts: Sequence[int], stages: Sequence[Sequence[Pass]]
) -> float:
    """The longest wait of any stage. `held`: trained parameters on a rank of each; `experts`: those of experts among
    them; `stages`: passes of its model chunks.
    """
    return max(map(partial(_wait, setting), held, experts, stages)) + _tied_embedding(setting)


def _wait(setting: Setting, parameters: int, experts: int, chunks: Sequence[Pass]) -> float:
    """Gradients are reduced while the last backward passes run, and parameters gathered while the first forward passes
    do, bucket by bucket; with virtual stages, chunk by chunk over one group of micro-batches (as many as stages). The
    last bucket has nothing to hide behind; on the first stage it holds the embedding, which is not cut. Other stages,
    whose gradients megatron-core does not cut into buckets, are counted like it: they are done before it, and have the
    time until it is.
    """
    job, degrees = setting.job, setting.job.parallelism
    group = group_of(job, setting.device, job.weight_replicas, setting.tp)
    spread = degrees.expert_tensor_parallel * degrees.expert_model_parallel_size
    of_experts = group_of(job, setting.device, job.expert_replicas, spread)
    if job.is_fully_sharded:
        of_layers = sum(in_stages(job, partial(layer_parameters, job.model, degrees_of(degrees))))
        ranks = job.weight_replicas // job.sharded_copies
        group = group_of(job, setting.device, ranks, setting.tp)
        of_experts = group_of(job, setting.device, job.expert_replicas // job.sharded_copies, spread)
        copies = group_of(job, setting.device, job.sharded_copies, setting.tp * ranks)
        shared_out = [(group, of_layers - experts), *([(of_experts, experts)] if experts else [])]
        [passes] = chunks
        summed = copies.reduce_seconds(parameters / ranks * setting.gradient_size)
        return sharded_weights_seconds(setting, shared_out, parameters - of_layers, passes) + summed
    reduction = gathering = 0.0
    for over, count in ((group, parameters - experts), (of_experts, experts)):
        if not count:
            continue
        gathered = over.gather_seconds(count * setting.gradient_size)
        reduction += gathered if degrees.use_distributed_optimizer else 2 * gathered
        gathering += over.gather_seconds(count * setting.size) if degrees.use_distributed_optimizer else 0.0
    table = 0.0 if setting.is_frozen else setting.padded_vocab / setting.tp * setting.model.hidden_size
    together, last = 1, min(1.0, max(bucket_size(job), table) / parameters)
    if len(chunks) > 1:
        together = min(degrees.pipeline_model_parallel_size, job.num_micro_batches)
        last = max(last, 1 / len(chunks))
    forward = together * sum(sum(each.forward.values()) for each in chunks)
    backward = together * sum(sum(each.backward.values()) for each in chunks)
    if setting.captured:  # a graph holds no communication
        return reduction + gathering
    wait = _beside(group, reduction, backward, last) if degrees.overlap_grad_reduce else reduction
    return wait + (_beside(group, gathering, forward, last) if degrees.overlaps_param_gather else gathering)


def _beside(group: Group, seconds: float, window: float, last: float) -> float:
    return seconds * last + group.hidden(seconds * (1 - last), window * (1 - last))


def _tied_embedding(setting: Setting) -> float:
    """Where both need the embedding, the first and the last stage sum their gradients of the table, at the end."""
    stages = setting.job.parallelism.pipeline_model_parallel_size
    if stages == 1 or setting.is_frozen or not setting.job.shares_embedding:
        return 0.0
    stride = setting.tp * setting.cp * setting.job.data_parallel_size * (stages - 1)
    table = setting.padded_vocab / setting.tp * setting.model.hidden_size * setting.gradient_size
    return group_of(setting.job, setting.device, 2, stride).reduce_seconds(table)
