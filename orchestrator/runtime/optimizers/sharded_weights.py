"""megatron-core's distributed optimizer where no rank has whole weights: it updates what the rank keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer


class ShardedWeightsOptimizer(DistributedOptimizer):
    """Of chunks wrapped in `FullyShardedDataParallel`, whose gradients are those of what this rank keeps."""

    @classmethod
    def _build_model_and_main_param_groups(
        cls, gbuf_ranges: Any, param_gbuf_map: Any, opt_group_ranges: Any, config: Any
    ) -> tuple[list[list[Any]], ...]:
        """As megatron-core's, over what this rank keeps, which lies elsewhere than the whole weights."""
        made: tuple[list[list[Any]], ...] = tuple([[] for _ in opt_group_ranges] for _ in range(5))
        weights, wide_weights, shards, wide_shards, copies = made
        for index, group in enumerate(opt_group_ranges):
            for weight in group["params"]:
                shard = _like(weight.shard.weight, weight)
                if weight.dtype == torch.float32:
                    wide_weights[index].append(weight)
                    wide_shards[index].append(shard)
                else:
                    copy = _like(shard.clone().float(), weight)
                    weight.main_param, weight.main_param_sharded = copy, True
                    weights[index].append(weight)
                    shards[index].append(shard)
                    copies[index].append(copy)
            group["orig_group"]["params"] = [*wide_shards[index], *copies[index]]
        return made

    def _pairs(self) -> Iterator[tuple[Any, torch.Tensor]]:
        """Each weight with what is updated for it."""
        for groups in (
            zip(self.model_float16_groups, self.shard_fp32_from_float16_groups, strict=True),
            zip(self.model_fp32_groups, self.shard_fp32_groups, strict=True),
        ):
            for weights, updated in groups:
                yield from zip(weights, updated, strict=True)

    def _copy_model_grads_to_main_grads(self) -> None:
        for weight, updated in self._pairs():
            updated.grad = weight.main_grad.float()

    def _copy_model_params_to_main_params(self, state_dict: Any = None) -> None:
        for weight, updated in self._pairs():
            updated.copy_(weight.shard.weight)


def _like(shard: torch.Tensor, weight: Any) -> torch.Tensor:
    """The attributes of a weight by which gradients are counted once for all that have it."""
    tensor_parallel.copy_tensor_model_parallel_attributes(shard, weight)
    if hasattr(weight, "shared"):
        vars(shard)["shared"] = weight.shared
    return shard
