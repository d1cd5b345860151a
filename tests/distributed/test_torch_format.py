"""Megatron-LM's older checkpoints as runs: what transformers' networks say of the same weights, and training on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.faults import Ranks

pytestmark = [pytest.mark.distributed, pytest.mark.slow("imports with the commands, generates and trains")]

HERE = Path(__file__).parents[1] / "unit" / "exchange"


def test_logits_are_those_of_transformers(ranks: Ranks, tmp_path: Path) -> None:
    """In fp32, of weights in fp16: GPT with each GeLU, BERT with its heads; several layouts, each order."""
    ranks.program(HERE, "rank_files_program", tmp_path)
    started = ranks.starter.start(tmp_path, 1, "one", "1", "1", program=HERE / "layout_program.py")
    assert started.wait() == 0
    cases = sorted(path.parent.name for path in tmp_path.glob("*/logits.pt"))
    assert len(cases) == 5
    for case in cases:
        theirs, ours = (torch.load(tmp_path / case / name) for name in ("logits.pt", "ours.pt"))
        assert theirs.std() > 0.1, f"{case}: logits that say something"
        assert (ours.reshape(theirs.shape) - theirs).abs().max() < 1e-5 * max(float(theirs.std()), 1.0), case
