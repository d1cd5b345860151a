"""`make bench` runs the benchmark as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_nine_tenths_of_a_plain_loop_with_the_same_losses() -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("bench_cpu.py"))]
    assert subprocess.run(command, check=False).returncode == 0
