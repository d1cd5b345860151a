"""The jobs that are shipped, by name."""

from __future__ import annotations

from pathlib import Path

_JOBS = Path(__file__).parents[2] / "jobs"
SHIPPED = {path.stem: path for path in sorted([*_JOBS.glob("*.yaml"), *_JOBS.glob("benchmarks/*.yaml")])}
