"""`make bench` runs the benchmark as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_a_thousand_cells_are_expanded_planned_and_rendered_in_seconds() -> None:
    command = [sys.executable, str(Path(__file__).with_name("bench_sweep.py"))]
    assert subprocess.run(command, check=False).returncode == 0
