"""Intervals of a tensor's elements as rectangular parts of it, and as parts of what a checkpoint makes of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from support.refused import refused

from orchestrator.errors import CheckpointError
from orchestrator.runtime.optimizers.shards import Box, boxes_of, sharded_states


def part_of(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(at, at + length) for at, length in zip(box.start, box.shape, strict=True))]


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (5, 1), (1, 6), (3, 1, 4), (2, 3, 4)])
def test_every_interval_is_its_boxes(shape: tuple[int, ...]) -> None:
    """In order, nothing twice, and as few as there can be."""
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    for start in range(numbers.numel() + 1):
        for stop in range(start, numbers.numel() + 1):
            boxes = list(boxes_of(shape, start, stop))
            found = [number for box in boxes for number in part_of(numbers, box).flatten().tolist()]
            assert found == list(range(start, stop))
            assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_whole_rows_are_one_box() -> None:
    assert list(boxes_of((9, 5), 10, 40)) == [Box((2, 0), (6, 5))]
    assert list(boxes_of((9, 5), 8, 41)) == [Box((1, 3), (1, 2)), Box((2, 0), (6, 5)), Box((8, 0), (1, 1))]


def plain(parameter: torch.Tensor) -> ShardedTensor:
    """The second of two tensor-parallel parts, in the third of four layers."""
    return ShardedTensor.from_rank_offsets(
        "layers.weight", parameter, (0, 2, 4), (1, 1, 2), replica_id=(0, 0, 1), prepend_axis_num=1
    )


def gated(parameter: torch.Tensor) -> ShardedTensorFactory:
    made: ShardedTensorFactory = apply_swiglu_sharded_factory(plain(parameter), ((0, 2, 4),))
    return made


def narrowed(parameter: torch.Tensor, axis: int, sizes: dict[str, int]) -> ShardedTensorFactory:
    """Saved as one tensor for each of these lengths of an axis, as state space layers are."""
    bare = plain(parameter).without_data()

    def build(key: str, tensor: torch.Tensor, replica_id: Any, flattened_range: Any) -> list[ShardedTensor]:
        whole = replace(bare, data=tensor, dtype=tensor.dtype, replica_id=replica_id)
        starts = accumulate(sizes.values(), initial=0)
        built = [whole.narrow(axis, start, size)[0] for start, size in zip(starts, sizes.values(), strict=False)]
        return [replace(one, key=f"{key}.{name}") for one, name in zip(built, sizes, strict=True)]

    return ShardedTensorFactory(bare.key, parameter, build, torch.cat, bare.replica_id)


def split(parameter: torch.Tensor) -> ShardedTensorFactory:
    return narrowed(parameter, 0, {"x": 2, "y": 3, "z": 1})


def across(parameter: torch.Tensor) -> ShardedTensorFactory:
    """Into parts that do not lie in one piece."""
    return narrowed(parameter, 1, {"x": 2, "y": 5})


def tensors_of(sharded: list[ShardedTensor]) -> dict[str, torch.Tensor]:
    """What they write, -1 where nothing is written; what is written twice is an error."""
    whole: dict[str, torch.Tensor] = {}
    for one in sharded:
        into = whole.setdefault(one.key, torch.full(one.global_shape, -1.0))[one.global_slice()]
        assert one.data is not None
        assert bool((into == -1).all())
        into.copy_(one.data)
    return whole


@pytest.mark.parametrize("kind", [plain, gated, split, across])
@pytest.mark.parametrize("cuts", [(0, 42), (0, 1, 42), (0, 10, 24, 42), (0, 21, 22, 23, 42)])
def test_the_parts_of_all_replicas_are_the_whole(kind: Any, cuts: tuple[int, ...]) -> None:
    """What one tensor, sharded as the weight is, would have been saved as."""
    state = torch.arange(42.0).view(6, 7)
    whole = kind(state)
    built = whole.build() if isinstance(whole, ShardedTensorFactory) else [whole]
    expected = {f"optimizer.state.m.{key}": tensor for key, tensor in tensors_of(built).items()}
    parts = [
        part
        for start, stop in pairwise(cuts)
        for part in sharded_states(kind(torch.zeros(6, 7)), start, {"m": state.flatten()[start:stop]}, 0)
    ]
    assert {part.replica_id for part in parts} == {(0, 0, 0)}
    written = tensors_of(parts)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[key], tensor) for key, tensor in expected.items())


def test_they_are_read_in_place() -> None:
    """What is put into the parts is in the state."""
    state = torch.zeros(20)
    for part in sharded_states(gated(torch.zeros(6, 7)), 5, {"m": state}, 0):
        part.data.fill_(1)
    assert bool((state == 1).all())


def test_a_parameter_that_is_saved_transformed_is_refused() -> None:
    def turned(key: str, tensor: torch.Tensor, replica_id: Any, flattened_range: Any) -> list[ShardedTensor]:
        return [ShardedTensor.from_rank_offsets(key, tensor.t(), replica_id=replica_id)]

    factory = ShardedTensorFactory("weight", torch.zeros(6, 7), turned, lambda loaded: loaded, (0, 0, 0))
    with refused(
        "optimizer_state_not_rectangular",
        "weight",
        "parallelism.use_distributed_optimizer: false",
        kind=CheckpointError,
    ):
        list(sharded_states(factory, 0, {"m": torch.zeros(42)}, 0))
