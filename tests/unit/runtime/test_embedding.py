"""Gradients of looked-up rows are in the buffer as the table of torch's gradient would have been added to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import layers
from support.training import tiny_job
from torch.nn import functional

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.families.gpt import GPT
from orchestrator.runtime.layers.embedding import embedding, mark_only_looked_up


def weight_with_buffer(**attributes: Any) -> Any:
    """As megatron-core's data parallelism leaves one."""
    weight: Any = torch.nn.Parameter(torch.randn(11, 6, generator=torch.Generator().manual_seed(1)).bfloat16())
    weight.main_grad = torch.ones(11, 6)
    weight.grad_added_to_main_grad = False
    mark_only_looked_up(weight)
    for name, value in attributes.items():
        setattr(weight, name, value)
    return weight


def trained(weight: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The buffer after megatron-core's hook has seen what two micro-batches gave."""
    for seed in (2, 3):
        rows = embedding(tokens, weight)
        assert torch.equal(rows, functional.embedding(tokens, weight))
        rows.backward(torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed)).bfloat16())
        if not weight.grad_added_to_main_grad:
            weight.main_grad.add_(weight.grad)
        assert weight.grad.shape == weight.shape
        weight.grad = None
    found: torch.Tensor = weight.main_grad
    return found


TOKENS = torch.tensor([[3, 0, 3], [10, 3, 0]])


def wanted() -> torch.Tensor:
    """Sums of the same gradients, in fp64."""
    sums = torch.ones(11, 6, dtype=torch.float64)
    for seed in (2, 3):
        gradient = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(seed)).bfloat16()
        sums.index_add_(0, TOKENS.flatten(), gradient.flatten(0, 1).double())
    return sums


def test_rows_are_added_to_the_buffer() -> None:
    weight = weight_with_buffer()
    found = trained(weight, TOKENS)
    assert weight.grad_added_to_main_grad
    torch.testing.assert_close(found.double(), wanted(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    [{"only_looked_up": False}, {"main_grad": torch.ones(11, 6, dtype=torch.bfloat16)}],
    ids=["shared", "in 16 bits"],
)
def test_what_autograd_is_to_sum_is_left_to_it(attributes: dict[str, Any]) -> None:
    """Weights that the output layer shares, and buffers that would round every sum."""
    weight = weight_with_buffer(**attributes)
    found = trained(weight, TOKENS)
    assert not weight.grad_added_to_main_grad
    torch.testing.assert_close(found.double(), wanted(), rtol=2e-2, atol=2e-2)


def test_a_deterministic_run_adds_in_a_fixed_order() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        weight = weight_with_buffer()
        trained(weight, TOKENS)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not weight.grad_added_to_main_grad


@pytest.mark.parametrize("frozen", [True, False])
def test_without_gradients_it_is_a_lookup(frozen: bool) -> None:
    weight = weight_with_buffer(requires_grad=not frozen)
    with torch.set_grad_enabled(frozen):
        rows = embedding(TOKENS, weight)
    assert not rows.requires_grad
    assert torch.equal(rows, functional.embedding(TOKENS, weight))


@pytest.mark.parametrize(
    ("tied", "first", "last", "marked"),
    [(False, True, True, True), (True, True, True, False), (True, True, False, True), (False, False, True, None)],
)
def test_a_gpt_marks_what_its_output_layer_does_not_share(
    tied: bool, first: bool, last: bool, marked: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage that stands for a gradient would be added to the output layer's."""
    weight = torch.nn.Parameter(torch.zeros(2, 2))

    def build(self: Any, *arguments: Any, **options: Any) -> None:
        torch.nn.Module.__init__(self)
        self.pre_process, self.post_process, self.share_embeddings_and_output_weights = first, last, tied
        self.mtp_process = False
        if first:
            self.embedding = SimpleNamespace(word_embeddings=SimpleNamespace(weight=weight))

    monkeypatch.setattr(GPTModel, "__init__", build)
    config: Any = None
    model = tiny_job("marks", model={"position_embedding_type": "none"}).model  # GPTModel builds the rotation
    GPT(config, None, model=model, valid_vocab_size=2, joins_loss=False)
    assert vars(weight).get("only_looked_up", False) is bool(marked)


def test_megatron_core_looks_up_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(layers), "F", layers.F)  # put back afterwards
    megatron_compat.add_rows_to_their_buffer()
    assert layers.F.embedding is embedding
    assert layers.F.linear is functional.linear
    assert functional.embedding is not embedding
