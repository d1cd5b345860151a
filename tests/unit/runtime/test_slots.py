"""Patches in slots and out of them again: their gradients are those of torch's look-up of rows by number."""

from __future__ import annotations

import pytest
import torch

from orchestrator.runtime.layers.images.slots import in_slots, out_of_slots, slots_of

CPU = torch.device("cpu")
NUMBERS = {
    "in order": [0, 1, 2, 3],
    "in another order": [2, 0, 3, 1],
    "some are empty": [2, 0, -1, 3, 1, -1, -1],
}


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "thirds of one tensor"])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=list(NUMBERS))
def test_values_and_gradients(numbers: list[int], joined: bool) -> None:
    """`joined`: as a projection leaves queries, keys and values."""
    torch.manual_seed(1)
    whole = torch.randn(4, 1, 2, 3, 5, requires_grad=True)
    rows = torch.tensor(numbers)
    slots = slots_of(rows, CPU)
    there, taken = (rows >= 0)[:, None, None], rows.clamp(min=0)
    weights = torch.randn(len(rows), 2, 5)
    gradients = []
    for ours in (True, False):
        parts = whole.unbind(-2)
        if ours:
            parts = parts if joined else tuple(each.contiguous() for each in parts)
            q, k, v = in_slots(*parts, slots)
            assert q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
        else:
            q, k, v = (each.squeeze(1).index_select(0, taken) for each in parts)
        mixed = (q * k + v.exp()) * weights * there
        if ours:
            found = out_of_slots(mixed.flatten(1), slots)
        else:
            places = torch.tensor([numbers.index(row) for row in range(4)])
            found = mixed.flatten(1).index_select(0, places)
        (gradient,) = torch.autograd.grad((found * torch.arange(10.0)).sum(), whole)
        gradients.append((found.detach(), gradient))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_an_empty_slot_holds_reaches_no_row() -> None:
    slots = slots_of(torch.tensor([1, -1, 0]), CPU)
    found = torch.tensor([[1.0], [torch.nan], [3.0]], requires_grad=True)
    rows = out_of_slots(found, slots)
    assert rows.flatten().tolist() == [3.0, 1.0]
    (gradient,) = torch.autograd.grad(rows.sum(), found)
    assert gradient.flatten().tolist() == [1.0, 0.0, 1.0]
