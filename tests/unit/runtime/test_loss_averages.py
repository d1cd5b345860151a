"""What a step minimises and what it reports, per token and per micro-batch, by Megatron-LM's formulas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
from support.training import tiny_job

from orchestrator.runtime.forward_backward import objective
from orchestrator.runtime.processes.rank_agreement import Losses
from orchestrator.runtime.steps.base import TrainStep
from orchestrator.runtime.steps.bert import MaskedTokens
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.runtime.steps.t5 import SpanCorruption

MICRO_BATCHES = 3
T5 = {"architecture": "t5", "decoder_seq_length": 32}
BERT = {"architecture": "bert"}
MASKED = {"random_tokens": True, "eod_mask_loss": True}


def micro_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(losses of tokens, mask), [b, s] each, with different numbers of tokens that count."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for index in range(MICRO_BATCHES):
        losses = torch.rand(2, 12, generator=generator, dtype=torch.float64).float().requires_grad_()
        found.append((losses, (torch.rand(2, 12, generator=generator) < 0.2 + 0.3 * index).long()))
    counts = [int(mask.sum()) for _, mask in found]
    assert len(set(counts)) == MICRO_BATCHES
    assert min(counts) > 0
    return found


def minimised(step: TrainStep, per_token: bool, found: list[tuple[torch.Tensor, torch.Tensor]]) -> Losses:
    """Backward over all micro-batches, as megatron-core's schedules do it; what the step reports."""
    config: Any = SimpleNamespace(
        calculate_per_token_loss=per_token, timers=None, num_moe_experts=None, mtp_num_layers=None
    )
    sums, tokens = torch.zeros(len(step.parts), 2, dtype=torch.float64), 0
    for losses, mask in found:
        store: list[Any] = []
        loss, count = forward_step_calc_loss(
            SimpleNamespace(config=config),
            losses,
            lambda output, mask=mask: objective(step.loss(output, {"loss_mask": mask}), per_token),
            config,
            None,
            False,
            MICRO_BATCHES,
            store,
            cp_group_size=1,
            is_last_stage=True,
        )
        loss.backward()
        tokens += int(count)
        sums += store[0]["loss"].double()
    if per_token:  # `network.finalizing`
        for losses, _ in found:
            losses.grad /= tokens
    return Losses.of(step.parts, tuple((float(total), float(count)) for total, count in sums))


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("family", ["gpt", "t5", "bert"])
def test_gradients_and_report(family: str, per_token: bool) -> None:
    """Megatron-LM's: the mean of the micro-batches' means, or the mean over all tokens with
    --calculate-per-token-loss. Its GPT and T5 report the mean over all tokens in either case, its BERT the former.
    """
    steps: dict[str, TrainStep] = {
        "gpt": NextToken(),
        "t5": SpanCorruption(12),
        "bert": MaskedTokens(has_binary_head=False, tokentypes=0, per_token=per_token),
    }
    found = micro_batches()
    reported = minimised(steps[family], per_token, found)
    masks, every = [mask for _, mask in found], torch.stack([losses.detach() for losses, _ in found])
    whole = sum(int(mask.sum()) for mask in masks)
    for (losses, _), mask in zip(found, masks, strict=True):
        assert losses.grad is not None
        share = 1 / whole if per_token else 1 / (MICRO_BATCHES * int(mask.sum()))
        torch.testing.assert_close(losses.grad, mask * share)
    of_tokens = float((every * torch.stack(masks)).sum() / whole)
    of_means = sum(float((each * mask).sum() / mask.sum()) for each, mask in zip(every, masks, strict=True))
    of_means /= MICRO_BATCHES
    assert abs(of_tokens - of_means) > 1e-3
    expected = of_means if family == "bert" and not per_token else of_tokens
    assert reported.parts["lm"] == pytest.approx(expected, rel=1e-6)


def test_berts_order_is_reported_beside_the_mean_of_means() -> None:
    step = MaskedTokens(has_binary_head=True, tokentypes=2)
    first, second = (torch.tensor([[4.0, 2.0, 0.5]]), torch.tensor([[1.0, 9.0, 1.5]]))
    masks = torch.tensor([[1, 1]]), torch.tensor([[1, 0]])
    sums = torch.zeros(2, 2)
    for output, mask in zip((first, second), masks, strict=True):
        _, report = objective(step.loss(output, {"loss_mask": mask}), per_token=False)
        sums += report["loss"]
    found = Losses.of(step.parts, tuple((float(total), float(count)) for total, count in sums))
    assert found.parts == {"lm": (3.0 + 1.0) / 2, "order": 1.0}
    assert found.total == 3.0


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, False),
        ({"data": MASKED}, True),
        ({"model": T5}, True),
        ({"model": BERT}, False),
        ({"data": MASKED, "batch": {"calculate_per_token_loss": False}}, False),
        ({"model": T5, "batch": {"calculate_per_token_loss": False}}, False),
        ({"batch": {"calculate_per_token_loss": True}}, True),
        ({"model": {**BERT, "bert_binary_head": False}, "batch": {"calculate_per_token_loss": True}}, True),
    ],
)
def test_which_jobs_have_a_loss_per_token(sections: dict[str, Any], expected: bool) -> None:
    assert tiny_job("job", **sections).has_per_token_loss is expected
