"""`make bench` runs the benchmarks as a person would; each fails below its bar."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

QUICK, LONG = pytest.mark.timeout(600), pytest.mark.timeout(1800)


@pytest.mark.benchmark
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bench_conversion", marks=LONG, id="conversions are nearly as fast as a copy"),
        pytest.param("bench_cpu", marks=QUICK, id="nine tenths of a plain loop"),
        pytest.param("bench_input", marks=QUICK, id="two workers give far more than a GPU consumes"),
        pytest.param("bench_sweep", marks=QUICK, id="a thousand cells in seconds"),
        pytest.param("bench_tokenize", marks=LONG, id="twice the tokens per second with the same bytes"),
        pytest.param("bench_tune", marks=QUICK, id="a large job is tuned in seconds"),
    ],
)
def test_a_benchmark_meets_its_bar(name: str) -> None:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(f"{name}.py"))]
    assert subprocess.run(command, check=False).returncode == 0
