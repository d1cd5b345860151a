"""The newest whole checkpoint is found by all ranks together, each reading a part of the bytes."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.slow("two ranks are started")
def test_ranks_share_the_reading_and_agree(run_ranks: Any) -> None:
    first, second = run_ranks("verification", 2)
    assert first["found"] == second["found"] == 10
    torn, damaged = first["skipped"]
    assert torn[0] == "iter_0000030"
    assert "never finished" in torn[1]
    assert damaged[0] == "iter_0000020"
    assert "file4 is damaged: its CRC-32" in damaged[1]
    assert second["skipped"] == []
    assert set(first["read"]) & set(second["read"]) == set()
    everything = {f"iter_00000{iteration}/file{number}" for iteration in (10, 20) for number in range(6)}
    assert set(first["read"]) | set(second["read"]) == everything
    assert len(first["read"]) == len(second["read"])
