"""A machine with fake SLURM commands."""

from __future__ import annotations

import pytest
from support.fake_slurm import FakeSlurm


@pytest.fixture
def fake_slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A machine with none of SLURM's commands but those that a test gives it."""
    slurm = FakeSlurm(tmp_path_factory.mktemp("slurm"))
    monkeypatch.setenv("PATH", str(slurm.bin))
    return slurm
