"""Megatron-LM's flags of multi-token prediction as fields of a spec, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Flags = Callable[..., Any]
ROTARY = ("--position-embedding-type", "rope")


def test_both_flags(flags: Flags) -> None:
    migrated = flags(*ROTARY, "--mtp-num-layers", "2", "--mtp-loss-scaling-factor", "0.3")
    assert (migrated.job.model.mtp_num_layers, migrated.job.model.mtp_loss_scaling_factor) == (2, 0.3)


@pytest.mark.parametrize("words", [(), ("--mtp-num-layers", "0")])
def test_the_weight_alone_has_no_effect(flags: Flags, words: tuple[str, ...]) -> None:
    migrated = flags(*words, "--mtp-loss-scaling-factor", "0.3")
    assert migrated.outcome("--mtp-loss-scaling-factor") == "no_effect"
    assert not migrated.job.model.predicts_further
