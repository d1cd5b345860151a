"""Buckets of weights that a group of replicas shares out, and the buffers that list them for megatron-core's
distributed optimizer, in the terms of its own `_ParamAndGradBuffer`.

All weights of a bucket lie side by side in one tensor, whose memory is there only while a layer computes: the weights
are views of it for good, so that neither a layer nor its kernels notice. A rank keeps an interval of the elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.runtime.network.fully_sharded.memory import allocate, free, is_alone_in_memory

_PARAMETER_ALIGNMENT, _BUCKET_ALIGNMENT = 64, 128
"""Elements: megatron-core's, for which matrix products are fast."""


@dataclass(frozen=True)
class WeightShard:
    """The elements of a weight that this rank keeps, from `start` on: `[n]`, where there are none `[0]`. It is the
    attribute `shard` of the parameter.
    """

    start: int
    weight: torch.Tensor
    gradient: torch.Tensor
    copy: int
    """Which of several equal ones; the first is saved."""


class ShardedBucket:
    """Weights of one unit that one group shares out.

    The attributes up to `gradient_scaling_factor` are those that megatron-core's optimizer reads.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        number: int,
        offset: int,
        group: dist.ProcessGroup,
        scaling: float,
        grads: Any,
        copy: int,
    ) -> None:
        self.params_list, self.params = list(parameters), set(parameters)
        self.offset, self.bucket_id, self.gradient_scaling_factor = offset, number, scaling
        self.places: dict[Any, tuple[int, int]] = {}
        """Of each weight the interval of its elements, counted from the bucket's beginning."""
        end = 0
        for parameter in parameters:
            begin = -(-end // _PARAMETER_ALIGNMENT) * _PARAMETER_ALIGNMENT
            end = begin + parameter.numel()
            self.places[parameter] = begin, end
        self.numel_unpadded = end
        multiple = math.lcm(group.size(), _BUCKET_ALIGNMENT)
        numel, first = -(-end // multiple) * multiple, parameters[0]
        self.group, self._length = group, numel // group.size()
        # One tensor after the other: at no time are there more than the weights twice, or their gradients once.
        self.param_data, self.held_weights = self._weights(numel, first)
        """`[n]`, whole, and those that this rank keeps, `[n / ranks]`."""
        self.grad_data, self._whole_gradients = self._gradients(numel, first, grads)
        """`[n]`, whole, and of each parameter its own."""
        self.held_gradients = torch.zeros(self._length, dtype=grads, device=first.device)
        """Those that this rank keeps, summed over micro-batches, `[n / ranks]`."""
        self._share_out(copy)
        self.use_whole_gradients()

    def _weights(self, numel: int, first: Any) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.zeros(numel, dtype=first.dtype, device=first.device)
        for parameter, (begin, end) in self.places.items():
            weight = whole[begin:end].view(parameter.shape)
            before = parameter.detach()
            weight.copy_(before)
            parameter.data = weight
            if is_alone_in_memory(before):  # Transformer Engine's layers may hold on to it
                free(before)
        held = whole[self._first_held : self._first_held + self._length].clone()
        free(whole)
        return whole, held

    def _gradients(self, numel: int, first: Any, dtype: torch.dtype) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        # Views of a tensor are made while its memory is there.
        whole = torch.empty(numel, dtype=dtype, device=first.device)
        views = {each: whole[begin:end].view(each.shape) for each, (begin, end) in self.places.items()}
        free(whole)
        return whole, views

    def _share_out(self, copy: int) -> None:
        """Give each parameter what this rank keeps of it."""
        first, length = self._first_held, self._length
        for parameter, (begin, end) in self.places.items():
            low = min(max(begin, first), end)
            held = slice(max(low - first, 0), max(min(end - first, length), 0))
            parameter.shard = WeightShard(low - begin, self.held_weights[held], self.held_gradients[held], copy)

    @property
    def _first_held(self) -> int:
        return int(self.group.rank()) * self._length

    def use_whole_gradients(self) -> None:
        """Have backward passes add to the gradients of the whole bucket."""
        for parameter, gradient in self._whole_gradients.items():
            parameter.main_grad = gradient

    def use_held_gradients(self) -> None:
        """Once they are summed over the replicas: what a weight's gradient is from then on, `[n]`."""
        for parameter in self.params_list:
            parameter.main_grad = parameter.shard.gradient

    def begin_gather(self) -> Any:
        """Ask the other ranks for their weights; what is returned is to be waited for."""
        allocate(self.param_data)
        return dist.all_gather_into_tensor(self.param_data, self.held_weights, group=self.group, async_op=True)

    def release_weights(self) -> None:
        free(self.param_data)

    def allocate_gradients(self) -> None:
        allocate(self.grad_data)
        self.grad_data.zero_()

    def begin_reduce(self) -> tuple[Any, torch.Tensor]:
        """Sum gradients over the ranks; what is to be waited for, and what is then to be added to the held ones."""
        summed = torch.empty_like(self.held_gradients)
        if self.gradient_scaling_factor != 1.0:
            self.grad_data.mul_(self.gradient_scaling_factor)
        return dist.reduce_scatter_tensor(summed, self.grad_data, group=self.group, async_op=True), summed

    def add_reduced(self, summed: torch.Tensor) -> None:
        self.held_gradients.add_(summed)
        free(self.grad_data)


class ShardedBuffer:
    """The buckets of one group, as megatron-core's distributed optimizer reads them."""

    def __init__(self, settings: Any, group: dist.ProcessGroup, scaling: float, copy: int) -> None:
        """`copy`: which of several groups that each share out all weights this is."""
        self.ddp_config, self.data_parallel_group, self._copy = settings, group, copy
        self.data_parallel_world_size, self._scaling = group.size(), scaling
        self.params: list[Any] = []
        self.buckets: list[ShardedBucket] = []
        self.param_index_map: dict[Any, tuple[int, int, int]] = {}
        self.numel = self.numel_unpadded = 0

    def add(self, parameters: Sequence[Any]) -> ShardedBucket:
        """A bucket of these weights, which are of one format."""
        self.param_dtype = parameters[0].dtype
        self.grad_dtype = torch.float32 if self.ddp_config.grad_reduce_in_fp32 else self.param_dtype
        bucket = ShardedBucket(
            parameters,
            len(self.buckets),
            self.numel,
            self.data_parallel_group,
            self._scaling,
            self.grad_dtype,
            self._copy,
        )
        for parameter, (begin, end) in bucket.places.items():
            self.param_index_map[parameter] = self.numel + begin, self.numel + end, bucket.bucket_id
        self.params += bucket.params_list
        self.buckets.append(bucket)
        self.numel += bucket.param_data.numel()
        self.numel_unpadded += bucket.numel_unpadded
        return bucket
