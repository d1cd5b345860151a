"""`make bench` runs the benchmark as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
def test_conversions_are_nearly_as_fast_as_a_copy() -> None:
    command = [sys.executable, str(Path(__file__).with_name("bench_conversion.py"))]
    assert subprocess.run(command, check=False).returncode == 0
