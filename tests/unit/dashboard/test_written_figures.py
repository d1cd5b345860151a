"""Figures as a person reads them, the same in every place."""

from __future__ import annotations

import pytest

from orchestrator.cli.runs.compare import value_text
from orchestrator.dashboard import rendering
from orchestrator.quantities import disk_size, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3724, "0.372 s"),
        (34.8, "34.8 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (245.4, "4 min 5 s"),
        (3600.0, "1 h"),
        (97_300.0, "1 d 3 h"),
    ],
)
def test_a_time_is_the_same_on_the_terminal_and_on_a_page(seconds: float, text: str) -> None:
    assert duration(seconds) == value_text(seconds, "seconds") == rendering.duration(seconds) == text


def test_memory_is_in_powers_of_two_and_files_in_powers_of_ten_everywhere() -> None:
    assert value_text(2.5 * 2**30, "bytes") == rendering.size(2.5 * 2**30) == "2.5 GiB"
    assert rendering.disk(43e6) == disk_size(43e6) == "43 MB"
    assert [rendering.size(None), rendering.disk(None), rendering.duration(None)] == [rendering.NOTHING] * 3
