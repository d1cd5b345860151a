"""A model chunk whose replicas share out weights, gradients and optimizer state: in place of megatron-core's
`DistributedDataParallel`, for its schedules and its distributed optimizer.

Each layer is a unit: its weights are gathered before its forward pass and again before its backward pass, the next
unit's meanwhile, and its gradients are summed as soon as they are complete, once for each micro-batch. What is in no
layer (embeddings, the last norm, the output layer) is gathered for all micro-batches of a step, and its gradients are
summed at their end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.data_parallel_base import _BaseDataParallel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from orchestrator.runtime.network.fully_sharded.buckets import ShardedBuffer
from orchestrator.runtime.network.fully_sharded.memory import allocate, has_memory
from orchestrator.runtime.network.fully_sharded.units import ShardedUnit


class FullyShardedDataParallel(_BaseDataParallel):
    """A chunk, wrapped. `fill`: fills weights, given as a sharded state dict has them, which may have no memory yet;
    `prefetches`: whether a unit's weights are gathered while the one before it computes;
    `overlaps`: whether gradients are summed while others are computed.
    """

    def __init__(
        self,
        config: TransformerConfig,
        settings: DistributedDataParallelConfig,
        module: Any,
        fill: Callable[[Iterable[Any]], None],
        *,
        prefetches: bool,
        overlaps: bool,
    ) -> None:
        super().__init__(config=config, module=module)
        self.ddp_config = settings
        self._prefetches, self._overlaps = prefetches, overlaps
        replicas = parallel_state.get_data_parallel_world_size(with_context_parallel=True)
        scaling = 1.0 if config.calculate_per_token_loss else 1.0 / replicas
        dense = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
        of_experts = parallel_state.get_expert_data_parallel_group(partial_expert_data_parallel=True)
        self.other_groups: dist.ProcessGroup | None = None
        """The ranks of other sharding groups that keep the same elements; None where there is one group."""
        if settings.num_distributed_optimizer_instances > 1:
            self.other_groups = parallel_state.get_inter_distributed_optimizer_instance_group()
        copy = 0 if self.other_groups is None else self.other_groups.rank()
        self._dense = ShardedBuffer(settings, dense, scaling, copy)
        self._experts = ShardedBuffer(settings, of_experts, scaling, copy)
        entries = [each for each in module.sharded_state_dict().values() if hasattr(each, "data")]
        self._fill: Callable[[set[Any]], None] = lambda weights: fill(each for each in entries if each.data in weights)
        layers = list(_layers_of(module))
        in_layers = {parameter for layer in layers for parameter in layer.parameters()}
        self._root = self._unit_of([each for each in module.parameters() if each not in in_layers])
        self._units = [self._unit_of(list(layer.parameters())) for layer in layers]
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(functools.partial(self._before_forward, number))
            layer.register_forward_hook(functools.partial(self._after_forward, number))
        self.buffers = [self._dense] if self._dense.buckets else []
        self.expert_parallel_buffers = [self._experts] if self._experts.buckets else []
        self._in_backward = False
        self._reducing: ShardedUnit | None = None

    def _unit_of(self, parameters: list[Any]) -> ShardedUnit:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        shared = [parameter for parameter in trained if getattr(parameter, "allreduce", True)]
        of_experts = [parameter for parameter in trained if not getattr(parameter, "allreduce", True)]
        for parameter in parameters:
            if not has_memory(parameter):
                allocate(parameter)
        self._fill(set(parameters))
        buckets = [buffer.add(some) for buffer, some in ((self._dense, shared), (self._experts, of_experts)) if some]
        unit = ShardedUnit(buckets)
        for parameter in trained:
            parameter.grad_added_to_main_grad = False
            parameter.register_post_accumulate_grad_hook(functools.partial(self._take_gradient, unit))
        return unit

    def forward(self, *inputs: Any, **options: Any) -> Any:
        self._finish_backward()
        self._root.gather()
        output = super().forward(*inputs, **options)
        for tensor in _graded(output):
            tensor.register_hook(self._begin_backward)
        return output

    def _before_forward(self, number: int, *_: Any) -> None:
        self._units[number].gather()
        self._prefetch(number)

    def _after_forward(self, number: int, layer: nn.Module, inputs: Any, output: Any) -> None:
        graded = list(_graded(output))
        for tensor in graded:
            tensor.register_hook(functools.partial(self._before_backward, number))
        # A layer that is recomputed has its backward pass next, and so has the last one.
        if not self._in_backward and not (graded and number == len(self._units) - 1):
            self._units[number].release()

    def _begin_backward(self, _: torch.Tensor) -> None:
        self._in_backward = True
        self._root.allocate_gradients()

    def _before_backward(self, number: int, _: torch.Tensor) -> None:
        unit = self._units[number]
        unit.gather()
        unit.allocate_gradients()
        self._prefetch(number)

    def _prefetch(self, number: int) -> None:
        following = number - 1 if self._in_backward else number + 1
        if self._prefetches and 0 <= following < len(self._units):
            self._units[following].begin_gather()

    def _take_gradient(self, unit: ShardedUnit, parameter: Any) -> None:
        """Autograd calls it when the gradient of a weight is complete, in each backward pass."""
        if not parameter.grad_added_to_main_grad or getattr(parameter, "zero_out_wgrad", False):
            parameter.main_grad.add_(parameter.grad)
        parameter.grad = None
        unit.missing.discard(parameter)
        if unit is not self._root and not unit.missing:
            self._reduce(unit)

    def _reduce(self, unit: ShardedUnit) -> None:
        unit.release()
        if self._reducing is not None:
            self._reducing.finish_reduce()
        unit.begin_reduce()
        self._reducing = unit
        if not self._overlaps:
            unit.finish_reduce()

    def _finish_backward(self) -> None:
        """Of a micro-batch; a unit may have weights without gradients."""
        self._in_backward = False
        for unit in self._units:
            if unit.has_gradients:
                self._reduce(unit)
            unit.finish_reduce()
            unit.release()

    def finish_grad_sync(self, force_all_reduce: bool | None = False) -> None:
        """Sum what is left over the replicas, and leave each weight the gradient of what this rank keeps of it."""
        self._finish_backward()
        if self._root.has_gradients:
            self._root.begin_reduce()
            self._root.finish_reduce()
        self._root.release()
        for buffer in (self._dense, self._experts):
            for bucket in buffer.buckets:
                if self.other_groups is not None:
                    dist.all_reduce(bucket.held_gradients, group=self.other_groups)
                bucket.use_held_gradients()

    def zero_grad_buffer(self) -> None:
        """Begin a step."""
        for buffer in (self._dense, self._experts):
            for parameter in buffer.params:
                parameter.grad_added_to_main_grad = False
            for bucket in buffer.buckets:
                bucket.held_gradients.zero_()
                bucket.use_whole_gradients()

    def scale_gradients(self, scaling_factor: Any) -> None:
        """Those that this rank keeps."""
        for buffer in (self._dense, self._experts):
            for bucket in buffer.buckets:
                bucket.held_gradients.mul_(scaling_factor)

    def start_param_sync(self, *_: Any, **options: Any) -> None:
        """Updated weights are gathered by the next forward pass."""


def _layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a chunk's stacks, in the order of their forward passes."""
    for child in module.children():
        stack = getattr(child, "layers", None)
        if isinstance(stack, nn.ModuleList):
            yield from stack
        else:
            yield from _layers_of(child)


def _graded(output: Any) -> Iterator[Any]:
    """The tensors in what a layer returns that a backward pass goes through."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _graded(each)
