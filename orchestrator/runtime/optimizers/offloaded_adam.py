"""Adam whose state, the fp32 copies of 16-bit weights with it, is in the host's memory, or a fraction of it is.

An update brings the state to the GPU in blocks, updates each there, and takes it back: while one comes, the one before
it is updated and goes back, and what is on the GPU anyway is updated before them. The last ones go back during the next
forward pass. The arithmetic is GroupStepAdam's, so that a training comes out as with all state on the GPU.

megatron-core's HybridDeviceOptimizer updates on the host's cores instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from orchestrator.planning.offloaded_state import BLOCK_ELEMENTS
from orchestrator.runtime.optimizers import state_blocks
from orchestrator.runtime.optimizers.adam import GroupStepAdam, UpdatedTensors
from orchestrator.runtime.optimizers.state_blocks import ALIGNED, Block, BlockTransfers, Interval, Queue, State, packed

MAIN = "param"
"""What a checkpoint calls the fp32 copy of a weight."""

Key = tuple[int, int | None]
"""Of what is updated at a time: the group, and the block, or None of what is on the GPU."""


class OffloadedAdam(GroupStepAdam):
    """Adam for a distributed optimizer that leaves the fp32 copies of weights to it: its parameters are intervals of
    the weights themselves, flat, and their gradients, in fp32, are `decoupled_grad`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fraction = 1.0
        """Of the state that is in the host's memory."""
        self.block_elements = BLOCK_ELEMENTS
        self._stored: dict[torch.Tensor, list[tuple[Interval, State]]] = {}
        """All state of a parameter."""
        self._resident: list[list[tuple[Interval, State]]] = []
        """Of each group what is on the GPU."""
        self._numbers: list[range] = []
        """Of each group its blocks."""
        self.queue: Callable[[torch.device], Queue] | None = None
        """What copies blocks in one direction; that of the device where it is None."""
        self.transfers = BlockTransfers((), torch.device("cpu"))

    def prepare(self) -> None:
        """See StatefulOptimizer. The state of each parameter begins on the host, and ends on the GPU."""
        if self._stored:
            return
        blocks: list[Block] = []
        for group in self.param_groups:
            first = len(blocks)
            self._stored.update((parameter, []) for parameter in group["params"])
            self._resident.append(list(self._make_resident(group["params"])))
            blocks += self._make_blocks(group["params"])
            self._numbers.append(range(first, len(blocks)))
        for block in blocks:
            for interval in block.intervals:
                self._stored[interval.parameter].append((interval, interval.within(block.state)))
        for each in (one for of_group in self._resident for one in of_group):
            self._stored[each[0].parameter].append(each)
        device = next((parameter.device for parameter in self._stored), torch.device("cpu"))
        self.transfers = BlockTransfers(blocks, device, self.queue)
        self.read_weights()

    def _offloaded(self, parameter: torch.Tensor) -> int:
        """How many of a parameter's elements have their state there."""
        whole = parameter.numel()
        return whole if self.fraction == 1.0 else int(self.fraction * whole) // ALIGNED * ALIGNED

    def _make_resident(self, parameters: Iterable[torch.Tensor]) -> Iterator[tuple[Interval, State]]:
        for parameter in parameters:
            start = self._offloaded(parameter)
            count = parameter.numel() - start
            formats = self._formats(parameter).items()
            state = {key: torch.zeros(count, dtype=dtype, device=parameter.device) for key, dtype in formats}
            self.state[parameter] = state
            if count:
                yield Interval(parameter, start, count), state

    def _make_blocks(self, parameters: Sequence[torch.Tensor]) -> Iterator[Block]:
        """Each of parameters of one dtype, which have the same tensors of state."""
        for _, alike in groupby(sorted(parameters, key=lambda one: str(one.dtype)), key=lambda one: one.dtype):
            intervals = [Interval(parameter, 0, self._offloaded(parameter)) for parameter in alike]
            for cut, elements in packed(intervals, self.block_elements):
                first = cut[0].parameter
                formats = self._formats(first).items()
                yield Block(
                    cut, {key: state_blocks.host_zeros(elements, dtype, first.device) for key, dtype in formats}
                )

    def _formats(self, parameter: torch.Tensor) -> dict[str, torch.dtype]:
        """The dtypes of a parameter's state."""
        formats = {key: self.dtypes.get(key, torch.float32) for key in self.state_keys}
        return formats if parameter.dtype == torch.float32 else {**formats, MAIN: torch.float32}

    def read_weights(self) -> None:
        """Take the weights as they are now for those that the fp32 copies are of."""
        self.transfers.settle()
        for parameter, stored in self._stored.items():
            for interval, state in stored:
                if MAIN in state:
                    state[MAIN].copy_(interval.of(parameter))

    def stored(self, parameter: torch.Tensor) -> Iterator[tuple[int, State]]:
        """What a checkpoint has of a parameter, as it is after the last update, and where it is read to: for each
        interval the first element and its state.
        """
        self.transfers.settle()
        for interval, state in self._stored[parameter]:
            yield interval.start, {MAIN: interval.of(parameter), **state}  # fp32 weights are their own main copies

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, of the groups: state is read to where it is."""
        kept = dict(self.state)
        torch.optim.Optimizer.load_state_dict(self, {**state_dict, "state": {}})
        self.state.update(kept)

    def look_up(self) -> None:
        """See StatefulOptimizer."""
        for _, key, tensors in self._parts():
            if self.is_one_kernel(tensors[0].gradient.device):
                self.find(tensors, key)
        self.looked_up = True

    def update(self) -> None:
        """See StatefulOptimizer."""
        self.transfers.begin()
        for group in self.param_groups:
            group["step"] += 1 if group["params"] else 0
        for group, key, tensors in self._parts():
            number = key[1]
            if number is not None:
                self.transfers.wait(number)
            self._apply(group, key, tensors)
            if number is not None:
                self.transfers.give_back(number)
        self.looked_up = False

    def _apply(self, group: dict[str, Any], key: Key, tensors: list[UpdatedTensors]) -> None:
        if not self.is_one_kernel(tensors[0].gradient.device):
            self.update_in_passes(tensors, group)
            return
        if not self.looked_up:
            self.find(tensors, key)
        self.update_in_one_pass(group, key)

    def _parts(self) -> Iterator[tuple[dict[str, Any], Key, list[UpdatedTensors]]]:
        """What is updated at a time, in its order: what is on the GPU, group by group, and block by block."""
        for index, (group, resident) in enumerate(zip(self.param_groups, self._resident, strict=True)):
            if resident:
                yield group, (index, None), [_updated(*each) for each in resident]
        for index, (group, numbers) in enumerate(zip(self.param_groups, self._numbers, strict=True)):
            for number in numbers:
                state = self.transfers.on_device(number)
                intervals = self.transfers.blocks[number].intervals
                yield group, (index, number), [_updated(each, each.within(state)) for each in intervals]


def _updated(interval: Interval, state: State) -> UpdatedTensors:
    """`state`: of these elements, where they are updated."""
    weight, gradient = interval.of(interval.parameter), interval.of(vars(interval.parameter)["decoupled_grad"])
    main = state.get(MAIN)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    if main is None:
        return UpdatedTensors(weight, gradient, first, second, None)
    return UpdatedTensors(main, gradient, first, second, weight)
