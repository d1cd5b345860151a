"""BERT's training step, and why megatron-core's norm is replaced."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.runtime.forward_backward import objective
from orchestrator.runtime.steps.bert import MaskedTokens

BATCH = {
    "text": torch.tensor([[5, 6, 7], [8, 9, 0]]),
    "types": torch.tensor([[0, 1, 1], [0, 1, 0]]),
    "labels": torch.tensor([[0, 4, 0], [0, 3, 0]]),
    "padding_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    "loss_mask": torch.tensor([[0, 1, 0], [0, 1, 0]]),
    "is_random": torch.tensor([0, 1]),
    "truncated": torch.tensor([0, 0]),
}
LOSSES = torch.tensor([[9.0, 2.0, 9.0], [9.0, 4.0, 9.0]])


class Model:
    """Stands for the last stage: remembers what it was given."""

    def __init__(self, order: torch.Tensor | None) -> None:
        self.order = order

    def __call__(self, text: torch.Tensor, padding_mask: torch.Tensor, **given: Any) -> Any:
        self.given = {"text": text, "padding_mask": padding_mask, **given}
        return LOSSES, self.order


def test_the_masked_tokens_and_the_order_count() -> None:
    step = MaskedTokens(has_binary_head=True, tokentypes=2)
    batch = step.get_batch(BATCH)
    model = Model(torch.tensor([[0.0, 0.0], [0.0, 100.0]]))
    parts = step.loss(step.forward(model, batch), batch)
    assert model.given["tokentype_ids"] is batch["types"]
    assert (float(parts["lm"].total), int(parts["lm"].count)) == (3.0, 1)
    assert float(parts["order"].total) == pytest.approx(torch.log(torch.tensor(2.0)).item())
    assert int(parts["order"].count) == 2
    total, report = objective(parts, per_token=False)
    assert float(total) == pytest.approx(3.0 + 0.5 * torch.log(torch.tensor(2.0)).item())
    assert report["loss"].shape == (2, 2)


def test_without_a_binary_head_there_are_no_types_and_no_order() -> None:
    step = MaskedTokens(has_binary_head=False, tokentypes=0)
    model = Model(None)
    parts = step.loss(step.forward(model, step.get_batch(BATCH)), BATCH)
    assert list(parts) == ["lm"] == list(step.parts)
    assert model.given["tokentype_ids"] is None


def test_of_one_type_all_tokens_are() -> None:
    step, model = MaskedTokens(has_binary_head=False, tokentypes=1), Model(None)
    step.forward(model, step.get_batch(BATCH))
    assert model.given["tokentype_ids"].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_batch_without_a_masked_token_has_no_loss() -> None:
    """The shortest samples have none."""
    batch = {**BATCH, "loss_mask": torch.zeros(2, 3, dtype=torch.long)}
    step = MaskedTokens(has_binary_head=False, tokentypes=0)
    total, _ = objective(step.loss(LOSSES, batch), per_token=False)
    assert float(total) == 0.0


def test_random_tokens_give_a_batch_of_the_same_fields() -> None:
    tokens = torch.randint(0, 100, (2, 14))
    samples = {"tokens": tokens, "labels": tokens, "position_ids": torch.arange(14).expand(2, 14)}
    batch = MaskedTokens(has_binary_head=True, tokentypes=2).get_batch(samples)
    assert batch.keys() == BATCH.keys() - {"truncated"}
    assert int(batch["loss_mask"].sum()) == 4
    assert set(batch["is_random"].tolist()) <= {0, 1}


def test_megatron_cores_norm_refuses_sequence_parallelism() -> None:
    """While it does, megatron_compat puts ours into the head."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that apex is not installed
        from megatron.core.transformer.torch_norm import WrappedTorchNorm
    config = SimpleNamespace(layernorm_zero_centered_gamma=False, persist_layer_norm=False, sequence_parallel=True)
    with pytest.raises(AssertionError, match="sequence parallel"):
        WrappedTorchNorm(config=config, hidden_size=8)
