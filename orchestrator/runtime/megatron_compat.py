"""Differences between megatron-core versions, and what of it must be replaced. The one module for both.

Supported: 0.16.1 and 0.19.x. `apply` is called once per process, after the device is selected.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import megatron.core
import torch
from megatron.core import dist_checkpointing, parallel_state, utils
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import apply_factories, is_main_replica
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.fusions import fused_bias_dropout
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel import layers, mappings
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import attention
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch.nn import functional

from orchestrator.runtime.host_copies import HostCopies
from orchestrator.runtime.layers.embedding import embedding
from orchestrator.runtime.layers.normalization.bias_dropout_add import add_all, drop_and_add
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.runtime.layers.weight_gradient import accumulate
from orchestrator.runtime.optimizers.adam import GroupStepAdam
from orchestrator.runtime.optimizers.matrices import Matrix
from orchestrator.runtime.optimizers.matrix_exchange import HeldMatrix
from orchestrator.runtime.optimizers.offloaded_adam import OffloadedAdam
from orchestrator.runtime.optimizers.sgd import MomentumSGD
from orchestrator.runtime.optimizers.shards import sharded_states
from orchestrator.runtime.optimizers.state_blocks import State
from orchestrator.runtime.optimizers.stateful import StatefulOptimizer
from orchestrator.runtime.processes import cpu_shim
from orchestrator.runtime.processes.device import Device

with warnings.catch_warnings():
    # It warns that neither Transformer Engine nor apex is there to give it an Adam; ours is put in below.
    warnings.simplefilter("ignore")
    import megatron.core.optimizer as megatron_optimizer
    from megatron.core.models.bert import bert_lm_head
    from megatron.core.optimizer import clip_grads, distrib_optimizer, optimizer

    from orchestrator.runtime.optimizers.sharded_weights import ShardedWeightsOptimizer

VERSION: tuple[int, ...] = tuple(int(part) for part in megatron.core.__version__.split(".")[:2])


_GROUP_KEYS = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr")
"""What tells groups of parameters apart in a checkpoint."""
_LEAST_FILES, _MOST_FILES, _FILE_BYTES = 2, 8, 2 << 30
"""Of a rank's part of a checkpoint."""


def apply(device: Device) -> None:
    """Put our optimizers and checkpoint writer in place of megatron-core's, and the CPU's generator behind its RNG."""
    if not device.is_cuda:
        cpu_shim.patch_megatron_random(megatron_random)
        cpu_shim.patch_megatron_dispatcher(token_dispatcher.MoEAlltoAllTokenDispatcher)
        cpu_shim.patch_megatron_mappings(mappings)
        cpu_shim.patch_megatron_norms(clip_grads, utils)
    else:
        add_rows_to_their_buffer()
        drop_in_one_kernel()
    _group_without_einops()
    _route_without_transformer_engine()
    split_as_transformer_engine()
    _use_our_optimizers()
    _recompute_without_transformer_engine()
    _recompute_without_compiler()
    _accumulate_without_apex()
    _write_checkpoints_in_process()
    _send_before_freeing()
    _auxiliary_losses().clear()
    vars(bert_lm_head)["LNImpl"] = Norm  # megatron-core's without apex refuses sequence parallelism
    logging.getLogger("megatron").setLevel(logging.ERROR)


def _group_without_einops() -> None:
    """Groups inside groups of replicas are counted out with einops, for a single pattern: (l s u) -> (l u) s."""
    names = vars(parallel_state)
    if not names["HAVE_EINOPS"]:
        names["HAVE_EINOPS"], names["einops"] = True, types.SimpleNamespace(rearrange=_rows_of_groups)


def _rows_of_groups(ranks: Any, pattern: str, *, u: int, s: int, l: int) -> Any:  # noqa: E741 - einops's names
    return ranks.reshape(l, s, u).transpose(0, 2, 1).reshape(l * u, s)


def _route_without_transformer_engine() -> None:
    """The router asks whether it has Transformer Engine's matrix product by a name that is not defined without."""
    vars(moe_utils).setdefault("te_general_gemm", None)


def split_as_transformer_engine() -> None:
    """megatron-core asks Transformer Engine for its split by a name of before 2.3. Without it, gradients of queries,
    keys and values that lie side by side already are copied there.
    """
    names = vars(attention)
    if names["SplitAlongDim"] is None:
        split = getattr(sys.modules.get("transformer_engine.pytorch.utils"), "SplitAlongDim", None)
        names["SplitAlongDim"] = getattr(split, "apply", None)


def drop_in_one_kernel() -> None:
    """What layers of every family add their branches by, where `bias_dropout_fusion` is set."""
    vars(fused_bias_dropout)["bias_dropout_add_fused_train"] = drop_and_add
    vars(fused_bias_dropout)["bias_dropout_add_fused_inference"] = add_all


def rotate_in_one_kernel(device: Device) -> None:
    """Queries and keys are rotated by a dozen kernels, 12 % of a step; compiled it is one for each of both passes.
    Most layers rotate by a kernel of our own (`layers.rotation`), and what has rows of ever new lengths, as generation
    and evaluation have, would be compiled again and again.
    """
    if not device.is_cuda:
        return
    rotate = rope_utils._apply_rotary_pos_emb_bshd
    vars(rope_utils)["_apply_rotary_pos_emb_bshd"] = torch.compile(rotate)


def _use_our_optimizers() -> None:
    """One Adam and one SGD everywhere, with the step in the group, so that every checkpoint has one layout."""
    use_adam(GroupStepAdam)
    vars(megatron_optimizer)["SGD"] = MomentumSGD
    vars(distrib_optimizer)["Adam"] = StatefulOptimizer  # the kind of optimizer whose state it takes
    vars(megatron_optimizer)["USING_PYTORCH_OPTIMIZER"] = False
    for module in (megatron_optimizer, optimizer, distrib_optimizer):
        if hasattr(module, "param_group_identifier_keys"):
            # 0.19 tells groups of parameters apart by their learning rate as well, which a resume may change.
            vars(module)["param_group_identifier_keys"] = _GROUP_KEYS
    flags = vars(distrib_optimizer)
    flags["HAVE_APEX_OR_TE"] = True
    flags["USING_TE_OPTIMIZER"] = False
    flags["USING_APEX_OPTIMIZER"] = True


def use_adam(adam: type[GroupStepAdam]) -> None:
    """What megatron-core makes from now on where it is asked for Adam."""
    vars(megatron_optimizer)["Adam"] = adam


def use_distributed_optimizer(shards_weights: bool) -> None:
    """What megatron-core makes from now on where it is asked for its distributed optimizer."""
    made = ShardedWeightsOptimizer if shards_weights else distrib_optimizer.DistributedOptimizer
    vars(megatron_optimizer)["DistributedOptimizer"] = made


def _recompute_without_transformer_engine() -> None:
    """Norms and activations that are recomputed by themselves do no FP8; megatron-core takes the word for it that they
    do not (False) for one that they do (not None), and calls Transformer Engine.
    """
    cpu_shim.wrap_once(megatron_random.CheckpointWithoutOutput, "__init__", _without_fp8_unless_asked)


def _without_fp8_unless_asked(original: Callable[..., None]) -> Callable[..., None]:
    def initialize(self: Any, fp8: Any = None) -> None:
        original(self, fp8 or None)

    return initialize


def _recompute_without_compiler() -> None:
    """What is recomputed goes back where it was by a copy, as 0.16 does it. 0.19 has a C++ extension compiled for it in
    the midst of the training: about a minute, and an error where there is no compiler.
    """
    if hasattr(megatron_random, "_get_share_storage"):
        vars(megatron_random)["_get_share_storage"] = lambda: _copy_storage


def _copy_storage(target: torch.Tensor, source: torch.Tensor) -> None:
    storage, recomputed = target.untyped_storage(), source.untyped_storage()
    storage.resize_(recomputed.nbytes())
    storage.copy_(recomputed)


def add_rows_to_their_buffer() -> None:
    """The embedding looks its tokens up by a function of the module that it calls F: ours, in a copy of that one."""
    functions = types.ModuleType(functional.__name__)
    vars(functions).update(vars(functional), embedding=embedding)
    vars(layers)["F"] = functions


def _accumulate_without_apex() -> None:
    """The linears take the product that adds weight gradients to their buffer from a module of apex."""
    names = vars(layers)
    if not names["_grad_accum_fusion_available"]:
        names["fused_weight_gradient_mlp_cuda"] = types.SimpleNamespace(
            wgrad_gemm_accum_fp32=accumulate, wgrad_gemm_accum_fp16=accumulate
        )
        names["_grad_accum_fusion_available"] = True


def _send_before_freeing() -> None:
    """An interleaved schedule frees what it has only begun to send, and the next stage received what another kernel had
    written there: torch holds on to the tensor that is sent, and megatron-core takes its memory away from under it.

    From 0.19 on it waits for what was sent, as is done here: the GPU does, not the host.
    """
    cpu_shim.wrap_once(P2PCommunicator, "send_forward_recv_forward", _waiting_for_what_was_sent)


def _waiting_for_what_was_sent(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = original(self, *arguments, **options)
        if isinstance(answer, tuple) and self.config.deallocate_pipeline_outputs:
            _, handles = answer
            sent = (handles or {}).pop("send_next", None)
            if sent is not None:
                sent.wait()
        return answer

    return send


def _write_checkpoints_in_process() -> None:
    """Write in threads, one per file: megatron-core starts a manager process per rank, which costs seconds per save."""
    writer: Any = filesystem_async.FileSystemWriterAsync

    def write(transforms: Any, use_msc: bool, rank: int, buckets: Any, results_queue: queue.Queue[Any]) -> None:
        def write_file(index: int) -> Any:
            results: queue.Queue[Any] = queue.Queue()
            counts: queue.Queue[int] = queue.Queue()
            counts.put(index)
            writer.write_preloaded_data(
                transforms,
                local_proc_idx=index,
                write_bucket=buckets[index],
                results_queue=results,
                count_queue=counts,
                use_fsync=True,
            )
            _, outcome = results.get()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        with ThreadPoolExecutor(len(buckets)) as pool:
            results_queue.put(dict(enumerate(pool.map(write_file, range(len(buckets))))))

    _replace(writer, ("write_preloaded_data_multiproc", "write_preloaded_data_multithread"), staticmethod(write))
    _replace(filesystem_async, ("_get_write_results_queue", "get_write_results_queue"), lambda *args: queue.Queue())


def _replace(owner: Any, names: tuple[str, ...], replacement: Any) -> None:
    """Set whichever of an attribute's names over the versions this one has."""
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, replacement)
            return
    version = megatron.core.__version__
    raise RuntimeError(f"megatron-core {version} is not supported: {owner.__name__} has no {names[0]}")


def begin_save(state: dict[str, Any], folder: str, content_metadata: dict[str, Any], copies: HostCopies) -> Any:
    """Plan a checkpoint (collective) and return megatron-core's request, whose writing is still to be done: with the
    arguments that `preload_fn` completes, by copying the tensors.
    """
    extra: dict[str, Any] = {} if VERSION < (0, 18) else {"async_strategy": "mcore"}
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=_file_count(state))
    request = dist_checkpointing.save(
        state, folder, strategy, async_sharded_save=True, content_metadata=content_metadata, **extra
    )
    if request.async_fn is None:
        return request

    def preload() -> Any:
        buckets = request.async_fn_args[1]
        copied = iter(copies.of([tensor for *_, (_, tensors) in buckets for _, tensor in tensors]))
        return [
            (path, key, (objects, [(item, next(copied)) for item, _ in tensors]))
            for path, key, (objects, tensors) in buckets
        ]

    return request._replace(preload_fn=preload)


def written_of(state: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a sharded state dict that this rank writes."""
    tensors = extract_sharded_tensors_and_factories(state)[0]
    apply_factories(tensors)
    return [each.data for each in nested_values(tensors) if is_main_replica(each.replica_id)]


def _file_count(state: dict[str, Any]) -> int:
    """How many files a rank writes: several at a time of a large checkpoint."""
    size = sum(tensor.nbytes for tensor in written_of(state))
    return min(_MOST_FILES, max(_LEAST_FILES, size // _FILE_BYTES))


def _auxiliary_losses() -> dict[str, Any]:
    """What megatron-core has added up of each, by layer of this process's first job that had it."""
    if VERSION < (0, 18):
        tracked: dict[str, Any] = moe_utils.get_moe_layer_wise_logging_tracker()
    else:
        tracked = moe_utils.get_moe_metrics_tracker().metrics
    return tracked


def take_auxiliary_losses() -> dict[str, torch.Tensor]:
    """Of each auxiliary loss of the experts its sum over this rank's layers and micro-batches since the last call."""
    if VERSION < (0, 18):
        tracked = {name: entry["values"] for name, entry in _auxiliary_losses().items()}
    else:
        tracked = {name: entry.values for name, entry in _auxiliary_losses().items()}
    sums = {name: values.sum() for name, values in tracked.items()}
    for values in tracked.values():
        values.zero_()
    return sums


def save_state_of(part: Any) -> None:
    """Let an optimizer of ours say what its state is, which megatron-core (0.16 to 0.19) takes for that of Adam; and
    let every replica of a distributed one save its own part of it from where it is, and load into it: megatron-core
    gathers the parts in the host's memory, in several copies one after the other.

    `part`: one of megatron-core's optimizers, over ours.
    """
    part.init_state_fn = lambda optimizer, config=None: optimizer.prepare()
    if not isinstance(part, distrib_optimizer.DistributedOptimizer):
        return

    def in_place(model: dict[str, Any], is_loading: bool = False, metadata: Any = None) -> dict[int, Any]:
        weights = {weight.data: weight for weight in nested_values(extract_sharded_tensors_and_factories(model)[0])}
        parts = (
            sharded_states(
                weights[parameter],
                part._get_model_param_range_map(parameter)["param"].start + start,
                state,
                part.distributed_optimizer_instance_id,
            )
            for parameter in part.model_param_gbuf_map
            for start, state in _states_of(part, parameter)
        )
        return dict(enumerate(chain.from_iterable(parts)))

    part.sharded_param_state_fully_reshardable = in_place
    part.load_parameter_state_from_fully_reshardable = lambda loaded: None  # it is there already


def _states_of(part: Any, weight: torch.Tensor) -> Iterable[tuple[int, State]]:
    """What a replica keeps of a weight: intervals, each by where it begins in what the replica keeps."""
    if not isinstance(part.optimizer, OffloadedAdam):
        return [(0, part._get_main_param_and_optimizer_states(weight))]
    group, place = part.model_param_group_index_map[weight]
    return part.optimizer.stored(part.optimizer.param_groups[group]["params"][place])


def leave_main_copies_to_optimizer(config: Any) -> None:
    """Have a distributed optimizer give its optimizer intervals of the weights themselves, with their gradients as
    `decoupled_grad`: megatron-core does so where an optimizer of Transformer Engine's is to keep the fp32 copies.
    """
    config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True


def held_matrices(part: Any, matrices: Mapping[torch.Tensor, Matrix]) -> tuple[list[HeldMatrix], Any]:
    """Of the matrices of a network those that an optimizer of megatron-core's updates, and the replicas that share its
    state: None where each has all of it.
    """
    if not isinstance(part, distrib_optimizer.DistributedOptimizer):
        own = {parameter: parameter for group in part.optimizer.param_groups for parameter in group["params"]}
        if isinstance(part, optimizer.Float16OptimizerWithFloat16Params):
            weights, copies = part.float16_groups, part.fp32_from_float16_groups
            own |= dict(zip(chain.from_iterable(weights), chain.from_iterable(copies), strict=True))
        held = ((matrix, own[weight]) for weight, matrix in matrices.items() if weight in own)
        return [HeldMatrix(matrix, parameter, (matrix.numel,)) for matrix, parameter in held], None
    shared = []
    for buffer in part.buffers:
        for weight, (start, stop, bucket) in buffer.param_index_map.items():
            if weight not in matrices:
                continue
            parameter = weight.detach().view(-1)[:0]
            if weight in part.model_param_group_index_map:
                group, place = part.model_param_group_index_map[weight]
                parameter = part.optimizer.param_groups[group]["params"][place]
            counts = _elements_by_replica(buffer.buckets[bucket], start, stop, buffer.data_parallel_group.size())
            shared.append(HeldMatrix(matrices[weight], parameter, counts))
    return shared, part.buffers[0].data_parallel_group


def _elements_by_replica(bucket: Any, start: int, stop: int, replicas: int) -> tuple[int, ...]:
    """Of elements `start` to `stop` of a buffer, which lie in a bucket of it, how many each replica has."""
    length = bucket.grad_data.numel() // replicas
    starts = (bucket.offset + replica * length for replica in range(replicas))
    return tuple(max(0, min(stop, each + length) - max(start, each)) for each in starts)


def write_weights_of(part: Any) -> None:
    """Let an optimizer of ours write the model's 16-bit weights as it updates their fp32 copies, which megatron-core
    reads again for it.

    `part`: one of megatron-core's optimizers, over ours.
    """
    if isinstance(part.optimizer, OffloadedAdam):
        _keep_main_copies_of(part)
        return
    if isinstance(part, distrib_optimizer.DistributedOptimizer):
        weights, copies = part.shard_float16_groups, part.shard_fp32_from_float16_groups
    elif isinstance(part, optimizer.Float16OptimizerWithFloat16Params):
        weights, copies = part.float16_groups, part.fp32_from_float16_groups
    else:
        return
    pairs = zip(chain.from_iterable(copies), chain.from_iterable(weights), strict=True)
    part.optimizer.weights = {copy: weight.detach() for copy, weight in pairs}
    part._copy_main_params_to_model_params = lambda: None


def _keep_main_copies_of(part: Any) -> None:
    """Let an optimizer that has the fp32 copies of weights read them anew where the weights are others, and have
    gradients in fp32, as it would get them for copies of megatron-core's.
    """
    as_reduced = part._copy_model_grads_to_main_grads

    def in_fp32() -> None:
        as_reduced()
        for parameter in part.get_parameters():
            parameter.decoupled_grad = parameter.decoupled_grad.float()

    part._copy_model_grads_to_main_grads = in_fp32
    part._copy_model_params_to_main_params = lambda state_dict=None: part.optimizer.read_weights()


def deterministic_algorithms(enabled: bool) -> None:
    """Ask torch and Transformer Engine for deterministic GPU kernels."""
    if enabled:
        os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"  # megatron-core refuses to go on without it
        # Without a workspace that is set torch takes no product of cuBLAS for deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
