"""Adam whose state is in the host's memory: bitwise the one whose state is beside the weights."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch

from orchestrator.runtime.optimizers.adam import GroupStepAdam
from orchestrator.runtime.optimizers.offloaded_adam import OffloadedAdam
from orchestrator.runtime.optimizers.state_blocks import Block, BlockTransfers, Interval, packed

SIZES = (1, 700, 64, 1290, 333, 128)
OPTIONS: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-6}
BF16 = {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}


def weights() -> list[torch.Tensor]:
    """In bf16, and two of them in fp32."""
    generator = torch.Generator().manual_seed(3)
    dtypes = (torch.bfloat16, torch.float32, *[torch.bfloat16] * 3, torch.float32)
    return [torch.randn(size, generator=generator).to(dtype) for size, dtype in zip(SIZES, dtypes, strict=True)]


def groups(params: list[torch.Tensor]) -> list[dict[str, Any]]:
    return [{"params": params[:2], "weight_decay": 0.0}, {"params": params[2:], "weight_decay": 0.3, "lr": 1e-3}]


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    return [torch.randn(size, generator=generator) for size in SIZES]


def offloaded(
    params: list[torch.Tensor], fraction: float, elements: int, dtypes: Any, queue: Any = None
) -> OffloadedAdam:
    adam = OffloadedAdam(groups(params), **OPTIONS)
    adam.queue = queue
    adam.fraction, adam.block_elements, adam.dtypes = fraction, elements, dtypes
    adam.prepare()
    return adam


def train(adam: OffloadedAdam, params: list[torch.Tensor], steps: range) -> None:
    for step in steps:
        adam.factor = 0.5 if step % 2 else 1.0
        for parameter, gradient in zip(params, gradients(step), strict=True):
            vars(parameter)["decoupled_grad"] = gradient
        adam.look_up()
        adam.step()


def beside_the_weights(dtypes: Any, steps: range) -> tuple[GroupStepAdam, list[torch.Tensor], list[torch.Tensor]]:
    """The same training with main copies that are the optimizer's parameters."""
    held = weights()
    mains = [weight.float() if weight.dtype != torch.float32 else weight for weight in held]
    adam = GroupStepAdam(groups(mains), **OPTIONS)
    adam.dtypes = dtypes
    adam.weights = {main: weight for main, weight in zip(mains, held, strict=True) if main is not weight}
    for step in steps:
        adam.factor = 0.5 if step % 2 else 1.0
        for main, gradient in zip(mains, gradients(step), strict=True):
            main.grad = gradient
        adam.step()
    return adam, mains, held


def whole(adam: OffloadedAdam, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """All state of a parameter, put together from where it is stored."""
    found: dict[str, torch.Tensor] = {}
    for start, state in adam.stored(parameter):
        for key, tensor in state.items():
            into = found.setdefault(key, torch.full((parameter.numel(),), torch.nan, dtype=tensor.dtype))
            assert bool(into[start : start + tensor.numel()].isnan().all()), "an element is stored once"
            into[start : start + tensor.numel()] = tensor
    assert not any(tensor.isnan().any() for tensor in found.values())
    return found


@pytest.mark.parametrize("dtypes", [{}, BF16])
@pytest.mark.parametrize(
    ("fraction", "elements"), [(1.0, 1 << 20), (1.0, 128), (0.5, 256), (0.25, 1 << 20), (1e-6, 64)]
)
def test_updates_are_bitwise_those_beside_the_weights(fraction: float, elements: int, dtypes: Any) -> None:
    params = weights()
    adam = offloaded(params, fraction, elements, dtypes)
    train(adam, params, range(6))
    reference, mains, held = beside_the_weights(dtypes, range(6))
    assert [group["step"] for group in adam.param_groups] == [6, 6]
    for parameter, main, weight, before in zip(params, mains, held, weights(), strict=True):
        assert torch.equal(parameter, weight)
        assert not torch.equal(parameter, before)
        state = whole(adam, parameter)
        assert torch.equal(state.pop("param"), main)
        assert state.keys() == reference.state[main].keys()
        for key, tensor in state.items():
            assert torch.equal(tensor, reference.state[main][key])
            assert tensor.dtype == dtypes.get(key, torch.float32)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_only_that_fraction_is_beside_the_weights(fraction: float) -> None:
    params = [torch.zeros(64 * 1000, dtype=torch.bfloat16) for _ in range(2)]
    adam = OffloadedAdam([{"params": params, "weight_decay": 0.0}], **OPTIONS)
    adam.fraction = fraction
    adam.prepare()
    beside = sum(tensor.nbytes for state in adam.state.values() for tensor in state.values())
    assert beside == 12 * 2 * 64 * 1000 * (1 - fraction)


def test_state_that_is_read_goes_on() -> None:
    """As a resume reads it: of another fraction, in other blocks, with the groups from a state dict."""
    first, second = weights(), weights()
    one = offloaded(first, 1.0, 128, {})
    train(one, first, range(4))
    other = offloaded(second, 0.5, 1 << 20, {})
    other.load_state_dict(one.state_dict())
    for parameter, source in zip(second, first, strict=True):
        parameter.copy_(source)
        read = whole(one, source)
        for start, state in other.stored(parameter):
            for key, tensor in state.items():
                tensor.copy_(read[key][start : start + tensor.numel()])
    train(one, first, range(4, 7))
    train(other, second, range(4, 7))
    assert all(torch.equal(*each) for each in zip(first, second, strict=True))


def test_weights_that_were_read_are_what_is_updated() -> None:
    """Those of another training, without its state."""
    params = weights()
    adam = offloaded(params, 0.5, 128, {})
    for parameter in params:
        parameter.fill_(2.0)
    adam.read_weights()
    assert all(bool((whole(adam, parameter)["param"] == 2.0).all()) for parameter in params)


def test_a_rank_without_parameters_updates_nothing() -> None:
    adam = OffloadedAdam([{"params": [], "weight_decay": 0.0}], **OPTIONS)
    adam.prepare()
    adam.look_up()
    adam.step()
    assert adam.param_groups[0]["step"] == 0


def test_intervals_are_packed_in_order_and_aligned() -> None:
    params = [torch.zeros(size) for size in SIZES]
    blocks = list(packed([Interval(each, 0, each.numel()) for each in params], 256))
    assert all(filled <= 256 for _, filled in blocks)
    intervals = [interval for cut, _ in blocks for interval in cut]
    assert all(interval.start % 64 == interval.place % 64 == 0 for interval in intervals)
    for parameter in params:
        own = [(each.start, each.count) for each in intervals if each.parameter is parameter]
        assert own[0][0] == 0
        assert [start + count for start, count in own] == [*[start for start, _ in own[1:]], parameter.numel()]


class Lazy:
    """A queue that does nothing before somebody waits for it: the latest that a GPU may copy."""

    def __init__(self, device: torch.device) -> None:
        self._left: list[tuple[Callable[[], None], Any]] = []
        self._done = 0

    def add(self, work: Callable[[], None], after: Any) -> Any:
        self._left.append((work, after))
        number = self._done + len(self._left)
        return SimpleNamespace(wait=lambda: self._do(number - self._done))

    def computed(self) -> None:
        """The CPU computes at once."""

    def finish(self) -> None:
        self._do(len(self._left))

    def _do(self, count: int) -> None:
        for _ in range(count):
            work, after = self._left.pop(0)
            self._done += 1
            if after is not None:
                after.wait()
            work()


@pytest.mark.parametrize("queue", [None, Lazy])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_block_comes_when_the_one_before_has_gone(count: int, queue: Any) -> None:
    """Two are on the device at a time, and what is changed there is what goes back: however late copies are."""
    parameter = torch.zeros(5)
    blocks = [
        Block((Interval(parameter, 0, 4),), {"exp_avg": torch.full((4,), float(number))}) for number in range(count)
    ]
    transfers = BlockTransfers(blocks, torch.device("cpu"), queue)
    for update in range(3):
        transfers.begin()
        for number in range(count):
            transfers.wait(number)
            held = transfers.on_device(number)["exp_avg"]
            assert held.tolist() == [number + 10.0 * update] * 4
            held += 10
            transfers.give_back(number)
    assert queue is None or blocks[-1].state["exp_avg"].tolist() == [count - 1 + 20.0] * 4, "the last one is on its way"
    transfers.settle()
    assert [block.state["exp_avg"].tolist() for block in blocks] == [[number + 30.0] * 4 for number in range(count)]


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_late_copies_change_nothing(fraction: float) -> None:
    """And what a checkpoint is written from is there."""
    params, others = weights(), weights()
    adam, late = (offloaded(each, fraction, 128, {}, queue) for each, queue in ((params, None), (others, Lazy)))
    for one, held in ((adam, params), (late, others)):
        train(one, held, range(5))
    for mine, other in zip(params, others, strict=True):
        assert torch.equal(mine, other)
        assert all(
            torch.equal(*each) for each in zip(whole(adam, mine).values(), whole(late, other).values(), strict=True)
        )
