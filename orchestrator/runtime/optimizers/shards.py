"""What a replica keeps of an optimizer's states, as parts of the tensors of a checkpoint.

A distributed optimizer keeps of each parameter an interval of its elements, counted as they lie in memory. Of a matrix
that is at most three rectangles: the rest of a row, whole rows, the beginning of a row. A checkpoint takes, and gives,
any rectangles of a tensor: nothing has to be gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from orchestrator.errors import CheckpointError


@dataclass(frozen=True)
class Box:
    """A rectangular part of a tensor: where it begins in each dimension, and how long it is there."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def within(self, other: Box) -> tuple[int, ...]:
        """Where it begins, counted from where `other` does."""
        return tuple(own - theirs for own, theirs in zip(self.start, other.start, strict=True))

    def shared_with(self, other: Box) -> Box | None:
        """What is in both; None where nothing is."""
        start = tuple(map(max, self.start, other.start))
        ends = (tuple(map(sum, zip(box.start, box.shape, strict=True))) for box in (self, other))
        shape = tuple(stop - begin for begin, stop in zip(start, map(min, *ends), strict=True))
        return Box(start, shape) if all(length > 0 for length in shape) else None


def boxes_of(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """The boxes that elements `start` to `stop` of a tensor of this shape make up, in their order in memory."""
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # all in one row
        yield from _in_row(shape, last, start - last * row, stop - last * row)
        return
    yield from _in_row(shape, first - 1, start - (first - 1) * row, row if start < first * row else 0)
    if last > first:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    yield from _in_row(shape, last, 0, stop - last * row)


def _in_row(shape: tuple[int, ...], row: int, start: int, stop: int) -> Iterator[Box]:
    for box in boxes_of(shape[1:], start, stop):
        yield Box((row, *box.start), (1, *box.shape))


def sharded_states(
    weight: ShardedTensor | ShardedTensorFactory, start: int, states: Mapping[str, torch.Tensor], instance: int
) -> Iterator[ShardedTensor]:
    """What a checkpoint holds of the states of a parameter on this rank, as views of them.

    `weight`: how the parameter itself is saved. `states`: by name, each of the elements from `start` on, `[n]`.
    `instance`: which of several equal optimizers this is; the first one saves.
    Raises CheckpointError where the weight is saved as no rectangles of it.
    """
    placed = list(_placed(weight))
    for key, state in states.items():
        named = [(replace(each, key=f"optimizer.state.{key}.{each.key}"), place) for each, place in placed]
        yield from _parts(weight, named, start, state.detach(), instance)


def sharded_weight(
    weight: ShardedTensor | ShardedTensorFactory, start: int, held: torch.Tensor, instance: int
) -> Iterator[ShardedTensor]:
    """What a checkpoint holds of a weight on a rank that keeps its elements from `start` on, `[n]`."""
    return _parts(weight, list(_placed(weight)), start, held, instance)


def _parts(
    weight: ShardedTensor | ShardedTensorFactory,
    placed: Sequence[tuple[ShardedTensor, Box]],
    start: int,
    flat: torch.Tensor,
    instance: int,
) -> Iterator[ShardedTensor]:
    stages, tensor_parallel, _ = weight.replica_id  # the replicas of the data share the elements instead
    position = 0
    for box in boxes_of(tuple(weight.data.shape), start, start + flat.numel()):
        part = flat[position : position + math.prod(box.shape)].view(box.shape)
        position += part.numel()
        for sharded, place in placed:
            if (shared := box.shared_with(place)) is not None:
                within = zip(shared.within(box), shared.shape, strict=True)
                data = part[tuple(slice(begin, begin + length) for begin, length in within)]
                yield _part_of(sharded, shared.within(place), data, (stages, tensor_parallel, instance))


def _part_of(
    sharded: ShardedTensor, begin: tuple[int, ...], data: torch.Tensor, replica_id: tuple[int, ...]
) -> ShardedTensor:
    """The part of a sharded tensor that begins there. megatron-core takes an uneven grid only without axes put before
    those of the data.
    """
    stacked = sharded.prepend_axis_num
    offsets = zip(sharded.global_offset[stacked:], begin, strict=True)
    return replace(
        sharded,
        data=data[(None,) * stacked],
        dtype=data.dtype,
        local_shape=(*(1 for _ in range(stacked)), *data.shape),
        global_offset=(*sharded.global_offset[:stacked], *map(sum, offsets)),
        axis_fragmentations=None,
        prepend_axis_num=0,
        replica_id=replica_id,
    )


def _placed(weight: ShardedTensor | ShardedTensorFactory) -> Iterator[tuple[ShardedTensor, Box]]:
    """The tensors that a parameter is saved as, each with where it lies in it; the tensors are without data."""
    shape = tuple(weight.data.shape)
    if isinstance(weight, ShardedTensor):
        yield weight.without_data(), Box((0,) * len(shape), shape)
        return
    whole = torch.empty(shape, device="meta")
    for sharded in nested_values(replace(weight, data=whole).build()):
        if sharded.data.stride() != whole.stride():
            raise CheckpointError(
                f"the optimizer's state of {weight.key} cannot be saved in parts: it is saved as {sharded.key}, "
                "which is not a rectangular part of it. With parallelism.use_distributed_optimizer: false it is "
                "saved completely",
                code="optimizer_state_not_rectangular",
            )
        rest, start = sharded.data.storage_offset(), []
        for stride in whole.stride():
            start.append(rest // stride)
            rest %= stride
        yield sharded.without_data(), Box(tuple(start), tuple(sharded.data.shape))
