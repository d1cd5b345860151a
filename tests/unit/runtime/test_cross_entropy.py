"""The cross entropy over rows of logits is torch's, and its gradient takes the logits' place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.refused import refused
from support.this_machine import Libraries
from torch.nn import functional

from orchestrator.errors import MissingDependency
from orchestrator.runtime.cross_entropy import rows
from orchestrator.runtime.cross_entropy.vocab_parallel import loss_of, vocab_parallel_cross_entropy


class Alone:
    """A group of one rank."""

    def size(self) -> int:
        return 1


ALONE: Any = Alone()


def sample(width: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(width)
    logits = 5 * torch.randn(6, width, generator=generator)
    return logits.to(dtype), torch.randint(0, width, (6,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "valid"), [(50, 50), (50, 43), (1, 1)])
def test_losses_and_gradients_are_torchs(width: int, valid: int, dtype: torch.dtype) -> None:
    values, labels = sample(width, dtype)
    labels = labels.clamp(max=valid - 1)
    weights = torch.linspace(0.5, 2.0, len(labels))
    plain = values[:, :valid].float().requires_grad_()
    expected = functional.cross_entropy(plain, labels, reduction="none")
    (expected * weights).sum().backward()
    leaf = values.clone().requires_grad_()
    # A part of a vocabulary that begins at 100, which is how the only rank of a group never has it.
    found = vocab_parallel_cross_entropy(leaf * 1, labels + 100, valid + 100, 100, ALONE)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    (found * weights).sum().backward()
    assert leaf.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(leaf.grad[:, :valid], plain.grad.to(dtype))
    assert not leaf.grad[:, valid:].any(), "padding has no gradient"


def test_parts_of_a_vocabulary_give_what_the_whole_does() -> None:
    """By hand what `over_ranks` does; trainings under tensor parallelism do it between ranks."""
    values, labels = sample(50)
    whole = rows.statistics(values, labels, 43)
    parts = [
        rows.statistics(values[:, first : first + 25], labels - first, valid) for first, valid in ((0, 25), (25, 18))
    ]
    largest = torch.maximum(parts[0][0], parts[1][0])
    total = sum((part[1] * (part[0] - largest).exp() for part in parts), torch.zeros(6))
    torch.testing.assert_close(torch.stack([largest, total, parts[0][2] + parts[1][2]]), whole)


def test_a_rank_with_nothing_but_padding_adds_nothing() -> None:
    values, labels = sample(8)
    found = rows.statistics(values, labels, 0)
    assert found[1].eq(0).all()
    assert (found[1] * (found[0] - 3.0).exp()).eq(0).all()
    rows.turn_into_gradient(values, labels, 0, torch.tensor([3.0, 1.0, 0.0])[:, None].expand(3, 6), torch.ones(6))
    assert values.eq(0).all()


def test_what_is_not_finite_is_seen() -> None:
    for bad in (float("nan"), float("inf")):
        values, labels = sample(8)
        values[2, 3] = bad
        losses = loss_of(rows.statistics(values, labels, 8))
        assert losses.isfinite().tolist() == [True, True, False, True, True, True]


def test_logits_that_are_gone_are_not_used_again() -> None:
    values, labels = sample(8)
    logits = values.requires_grad_() * 1
    losses = vocab_parallel_cross_entropy(logits, labels, 8, 0, ALONE).sum()
    losses.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.backward()


def test_a_gpu_without_triton_is_told_what_to_install(libraries: Libraries) -> None:
    libraries.missing("triton")
    with refused("missing_dependency", "triton", kind=MissingDependency):
        rows.rows_on(torch.device("cuda"))
