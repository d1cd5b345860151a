"""Our Adam against torch's AdamW."""

from __future__ import annotations

import copy
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch
from support.training import tiny_job

from orchestrator.runtime.optimizer_step import update
from orchestrator.runtime.optimizers.adam import GroupStepAdam

SHAPES = [(1,), (7,), (33, 5), (3, 1, 11), (129,)]
OPTIONS: dict[str, Any] = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-6}


def parameters(seed: int = 1) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def groups(params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params[:2], "weight_decay": 0.0}, {"params": params[2:], "weight_decay": 0.3, "lr": 1e-3}]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def train(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        set_gradients(params, step)
        optimizer.step()


def test_twenty_steps_are_bitwise_those_of_adamw() -> None:
    ours, theirs = parameters(), parameters()
    train(GroupStepAdam(groups(ours), **OPTIONS), ours, range(20))
    train(torch.optim.AdamW(groups(theirs), fused=True, **OPTIONS), theirs, range(20))
    for mine, reference, start in zip(ours, theirs, parameters(), strict=True):
        assert torch.equal(mine, reference)
        assert not torch.equal(mine, start)


def test_the_step_is_in_the_group_and_state_is_per_parameter() -> None:
    params = parameters()
    optimizer = GroupStepAdam(groups(params), **OPTIONS)
    train(optimizer, params, range(3))
    assert [group["step"] for group in optimizer.param_groups] == [3, 3]
    assert {tuple(optimizer.state[parameter]) for parameter in params} == {("exp_avg", "exp_avg_sq")}


def test_a_group_without_gradients_does_not_step() -> None:
    params = parameters()
    optimizer = GroupStepAdam(groups(params), **OPTIONS)
    params[0].grad = torch.ones_like(params[0])
    before = params[1].detach().clone()
    optimizer.step()
    assert [group.get("step", 0) for group in optimizer.param_groups] == [1, 0]
    assert torch.equal(params[1], before)
    assert list(optimizer.state) == [params[0]]


def test_a_restored_state_goes_on_bitwise() -> None:
    whole = parameters()
    train(GroupStepAdam(groups(whole), **OPTIONS), whole, range(8))
    first = parameters()
    optimizer = GroupStepAdam(groups(first), **OPTIONS)
    train(optimizer, first, range(5))
    saved = copy.deepcopy(optimizer.state_dict())
    second = [torch.nn.Parameter(parameter.detach().clone()) for parameter in first]
    restored = GroupStepAdam(groups(second), lr=9.0)
    restored.load_state_dict(saved)
    train(restored, second, range(5, 8))
    assert all(torch.equal(a, b) for a, b in zip(second, whole, strict=True))


@pytest.mark.parametrize("coupled", [False, True])
def test_one_update_clips_and_writes_weights_as_passes_of_their_own_do(coupled: bool) -> None:
    clipping, plain = parameters(), parameters()
    ours = GroupStepAdam(groups(clipping), adam_w_mode=not coupled, **OPTIONS)
    theirs = GroupStepAdam(groups(plain), adam_w_mode=not coupled, **OPTIONS)
    ours.weights = {parameter: torch.zeros_like(parameter, dtype=torch.bfloat16) for parameter in clipping[1:]}
    for step, factor in enumerate((0.3, 1.0, 0.7)):
        for params in (clipping, plain):
            set_gradients(params, step)
        ours.factor = factor
        ours.step()
        for parameter in plain:
            assert parameter.grad is not None
            parameter.grad *= factor
        theirs.step()
    for mine, reference in zip(clipping, plain, strict=True):
        assert torch.equal(mine, reference)
    for parameter, weight in ours.weights.items():
        assert torch.equal(weight, parameter.detach().bfloat16())


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the kernel, which is not compiled here."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    vars(triton)["jit"], vars(triton)["language"] = (lambda function: function), language
    vars(language).update(bfloat16="bf16", float16="fp16", constexpr=None)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    monkeypatch.delitem(sys.modules, "orchestrator.runtime.triton_kernels.adam", raising=False)
    yield importlib.import_module("orchestrator.runtime.triton_kernels.adam")
    sys.modules.pop("orchestrator.runtime.triton_kernels.adam")


def of_kernel(kernel: Any, params: list[torch.nn.Parameter], *, half: bool) -> list[Any]:
    """What the kernel takes of parameters, with gradients somewhere else each time."""
    weights = [torch.zeros_like(each, dtype=torch.bfloat16) if half else None for each in params]
    return [
        kernel.Tensors(each, torch.empty_like(each), torch.empty_like(each), torch.empty_like(each), weight)
        for each, weight in zip(params, weights, strict=True)
    ]


def test_every_element_is_one_programs_and_is_shared_out_once(kernel: Any) -> None:
    params = [torch.nn.Parameter(torch.zeros(size)) for size in (1, 1024, 5000, 2048, 16)]
    first = of_kernel(kernel, params[:2], half=False) + of_kernel(kernel, params[2:], half=True)
    launches = list(kernel.launches_of(first))
    assert sum(sum(launch.elements) for launch in launches) == sum(each.numel() for each in params)
    for launch in launches:
        programs = list(zip(*launch.chunks.tolist(), strict=True))
        wanted = [(place, each) for place, count in enumerate(launch.elements) for each in range(-(-count // 1024))]
        assert programs == wanted
        assert launch.counts.tolist() == list(launch.elements)
    moved = of_kernel(kernel, params[:2], half=False) + of_kernel(kernel, params[2:], half=True)
    after = list(kernel.launches_of(moved, launches))
    assert [launch.elements for launch in after] == [launch.elements for launch in launches]
    for before, launch in zip(launches, after, strict=True):
        assert launch.chunks is before.chunks, "where gradients are copied anew, each step would pay for it"
        assert not torch.equal(launch.addresses, before.addresses)
    found = {tuple(row) for launch in after for row in launch.addresses.t().tolist()}
    assert found == {each.addresses for each in moved}


def test_tensors_are_looked_up_before_the_norm_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the update is that of the norm that is found then."""
    called: list[str] = []
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 3.0)
    adam = GroupStepAdam([parameter])
    monkeypatch.setattr(adam, "look_up", lambda: called.append("looked up"))

    def norm() -> float:
        called.append("norm")
        return 6.0

    megatrons: Any = SimpleNamespace(
        optimizer=adam,
        param_groups=adam.param_groups,
        prepare_grads=lambda: False,
        get_grad_norm=norm,
        step_with_ready_grads=lambda: called.append(f"update by {adam.factor:.3f}"),
    )
    values: Any = SimpleNamespace(lr=1e-3, decoupled_lr=1e-3, weight_decay=0.0)
    assert update(megatrons, values, tiny_job("looks-up", optimizer={"clip_grad": 1.5})).applied
    assert called == ["looked up", "norm", "update by 0.250"]


def narrow(first: str, second: str) -> dict[str, torch.dtype]:
    dtypes = {"exp_avg": first, "exp_avg_sq": second}
    return {key: torch.bfloat16 for key, dtype in dtypes.items() if dtype == "bf16"}


@pytest.mark.parametrize(("first", "second"), [("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "bf16")])
@pytest.mark.parametrize("elements", [1 << 24, 40])
def test_moments_in_bf16_are_updated_in_fp32_and_rounded(first: str, second: str, elements: int) -> None:
    """Each step is torch's AdamW on a copy of the state in fp32; afterwards the state is rounded. In rounds as well."""
    ours, theirs = parameters(), parameters()
    optimizer = GroupStepAdam(groups(ours), **OPTIONS)
    optimizer.dtypes, optimizer.round_elements = narrow(first, second), elements
    reference = torch.optim.AdamW(groups(theirs), fused=True, **OPTIONS)
    for step in range(12):
        train(optimizer, ours, range(step, step + 1))
        train(reference, theirs, range(step, step + 1))
        for parameter in theirs:
            for key, dtype in narrow(first, second).items():
                rounded = reference.state[parameter][key].to(dtype)
                reference.state[parameter][key].copy_(rounded)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        for key, state in optimizer.state[mine].items():
            assert state.dtype == optimizer.dtypes.get(key, torch.float32)
            assert torch.equal(state.float(), reference.state[other][key])


def test_a_restored_state_is_in_the_formats_that_are_asked_for() -> None:
    """torch would bring it to those of the parameters."""
    params, others = parameters(), parameters()
    optimizer = GroupStepAdam(groups(params), **OPTIONS)
    optimizer.dtypes = narrow("bf16", "bf16")
    train(optimizer, params, range(3))
    for dtypes in (narrow("bf16", "bf16"), narrow("fp32", "bf16"), {}):
        restored = GroupStepAdam(groups(others), **OPTIONS)
        restored.dtypes = dtypes
        restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for mine, other in zip(params, others, strict=True):
            for key, state in restored.state[other].items():
                assert state.dtype == dtypes.get(key, torch.float32)
                assert torch.equal(state.float(), optimizer.state[mine][key].float())
