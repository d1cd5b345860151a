"""The loss of a micro-batch, with and without a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.refused import refused

from orchestrator.runtime.forward_backward import forward_step, objective
from orchestrator.runtime.steps.base import Batch, Part
from orchestrator.runtime.steps.gpt import NextToken

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def loss_function(mask: torch.Tensor, per_token: bool, output: torch.Tensor) -> tuple[Any, ...]:
    return objective(NextToken().loss(output, {"loss_mask": mask}), per_token)


def test_mean_over_the_tokens_that_count() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    loss, report = loss_function(mask, False, LOSSES)
    assert loss.item() == torch.tensor(10 / 3).item()
    assert report["loss"].tolist() == [[10.0, 3.0]]


def test_per_token_gives_the_sum_and_the_count() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    total, count, report = loss_function(mask, True, LOSSES)
    assert total.item() == 9.0
    assert count.item() == 3
    assert count.dtype == torch.int
    assert report["loss"].tolist() == [[9.0, 3.0]]


def test_the_sum_of_the_means_of_several_parts_is_minimised() -> None:
    words, order = torch.tensor([6.0, 4.0]), torch.tensor([3.0, 3.0])
    loss, report = objective({"lm": Part(*words), "order": Part(*order)}, False)
    assert loss.item() == 2.5
    assert report["loss"].tolist() == [[6.0, 4.0], [3.0, 3.0]]
    with pytest.raises(ValueError, match="lm, order"):
        objective({"lm": Part(*words), "order": Part(*order)}, True)


def test_nothing_counts() -> None:
    loss, report = loss_function(torch.zeros(2, 3), False, LOSSES)
    assert loss.item() == 0.0
    assert report["loss"].tolist() == [[0.0, 0.0]]


def test_the_report_keeps_no_graph_and_sums_in_fp32() -> None:
    output = LOSSES.to(torch.bfloat16).requires_grad_()
    loss, report = loss_function(torch.ones(2, 3), False, output)
    assert loss.dtype == torch.float32
    assert loss.requires_grad
    assert not report["loss"].requires_grad


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_has_no_finite_gradient(bad: float, per_token: bool) -> None:
    """Adding infinity alone leaves the derivative 1."""
    output = LOSSES.clone().requires_grad_()
    loss, *_ = loss_function(torch.ones(2, 3), per_token, output + torch.tensor([bad, 0.0, 0.0]))
    loss.backward()
    assert output.grad is not None
    assert output.grad.isnan().all()


class Told(NextToken):
    """Gives what the test says."""

    parts = ("lm", "extra")

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        return LOSSES

    def loss(self, output: torch.Tensor, batch: Batch) -> dict[str, Any]:
        return self.given


def told(given: dict[str, Any]) -> Any:
    output, loss = forward_step(Told(given), False, iter([{}]), None)
    return loss(output)[-1]["loss"].tolist()


SIX, TWO = torch.tensor(6.0), torch.tensor(2.0)


def test_parts_are_reported_as_they_are_named() -> None:
    assert told({"extra": Part(TWO, SIX), "lm": Part(SIX, TWO)}) == [[6.0, 2.0], [2.0, 6.0]]


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"lm": Part(SIX, TWO)}, ("loss_parts_differ", " lm, ", "lm, extra")),
        ({}, ("loss_parts_differ", "lm, extra")),
        ({"lm": Part(SIX, TWO), "extra": Part(SIX, 2)}, ("malformed_loss_part", "part extra")),
        ({"lm": Part(LOSSES, TWO), "extra": Part(SIX, TWO)}, ("malformed_loss_part", "part lm")),
    ],
)
def test_parts_that_a_step_does_not_give_are_its_authors_error(given: dict[str, Any], refusal: tuple[str, ...]) -> None:
    with refused(*refusal):
        told(given)


def test_counts_below_one_divide_too() -> None:
    loss, _ = objective({"lm": Part(torch.tensor(1.0), torch.tensor(0.5))}, False)
    assert loss.item() == 2.0
