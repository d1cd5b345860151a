"""Importing the Python interface takes about as long as importing what it checks specs with."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS_OF_AN_IMPORT = "import sys, time; before = time.process_time(); import {}; print(time.process_time() - before)"
ROUNDS = 7


@pytest.mark.alone
def test_the_interface_is_imported_in_twice_the_time_of_pydantic_at_most() -> None:
    """By processor time, in turns; the least of each counts, as other work can only add to it."""
    seconds: dict[str, list[float]] = {"orchestrator": [], "pydantic": []}
    for _ in range(ROUNDS):
        for module, found in seconds.items():
            command = [sys.executable, "-c", SECONDS_OF_AN_IMPORT.format(module)]
            found.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert min(seconds["orchestrator"]) <= 2 * min(seconds["pydantic"]), seconds
