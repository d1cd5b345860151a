"""`make bench` runs the benchmark as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_a_large_job_is_tuned_in_seconds() -> None:
    command = [sys.executable, str(Path(__file__).with_name("bench_tune.py"))]
    assert subprocess.run(command, check=False).returncode == 0
