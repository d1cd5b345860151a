"""`make bench` runs the benchmark as a person would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
def test_twice_the_tokens_per_second_with_the_same_bytes() -> None:
    command = [sys.executable, str(Path(__file__).with_name("bench_tokenize.py"))]
    assert subprocess.run(command, check=False).returncode == 0
