"""`make bench` runs the benchmark as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_two_workers_give_far_more_than_a_gpu_eats() -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("bench_input.py"))]
    assert subprocess.run(command, check=False).returncode == 0
