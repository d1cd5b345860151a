"""A hybrid where mamba-ssm is not installed: planned with a warning, and not started."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

JOB = """\
name: hybrid
model: {architecture: mamba, num_layers: 4, hybrid_override_pattern: "M*-M", hidden_size: 256, num_attention_heads: 4,
  seq_length: 64, vocab_size: 250}
batch: {micro_batch_size: 1, global_batch_size: 2}
data: {random_tokens: true}
optimizer: {lr: 1e-3}
schedule: {train_iters: 2}
"""


@pytest.mark.skipif(
    importlib.util.find_spec("mamba_ssm") is not None,
    reason="mamba-ssm is installed, and this is what is said without it",
)
def test_what_is_missing(orchestrator: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    validated = orchestrator("validate", path)
    assert validated.code == 0
    assert "4 layers (2 state space, 1 attention, 1 MLP)" in validated.out
    assert "need mamba-ssm and causal-conv1d and einops" in " ".join(validated.out.split())
    started = orchestrator("run", path)
    assert started.code == 2
    assert "need mamba-ssm and causal-conv1d and einops, which this Python lacks" in " ".join(started.err.split())
    assert not (tmp_path / "runs").exists()
    path.write_text(JOB.replace("M*-M", "*-*-"))
    started = orchestrator("run", path)
    assert started.code == 2, "and not a rank's failure: it asks for the same whichever layers there are"
    assert not (tmp_path / "runs").exists()
