"""docs/benchmarks/roofline.md says what the model of a step's time says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def test_the_page_is_up_to_date() -> None:
    script = ROOT / "tests" / "benchmarks" / "roofline.py"
    done = subprocess.run([sys.executable, str(script), "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"python tests/benchmarks/roofline.py\n{done.stderr}"
