"""A small legal job to start from."""

from __future__ import annotations

import pytest
from support.problems import codes, problems_of

from orchestrator.errors import Problem
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

SMALL = """\
name: small
model: {num_layers: 4, hidden_size: 128, num_attention_heads: 4, seq_length: 128}
batch: {micro_batch_size: 2, global_batch_size: 8}
data: {blend: [corpus]}
optimizer: {lr: 1e-3}
schedule: {train_iters: 100}
"""


class Small:
    """Loads the small job with overrides."""

    text = SMALL

    def job(self, *overrides: str) -> JobSpec:
        return load_text(SMALL, overrides=overrides).job

    def problems(self, *overrides: str) -> list[Problem]:
        """What is wrong with the small job under these overrides; empty when nothing is."""
        return problems_of(lambda: self.job(*overrides))

    def refused(self, *overrides: str) -> list[str]:
        """`CODE FIELD` of each."""
        return codes(self.problems(*overrides))


@pytest.fixture
def small() -> Small:
    return Small()
