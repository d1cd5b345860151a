"""Ranks for tests.

What needs the CPU shim runs in a program of its own: the shim changes torch for the whole process. Everything else is
tested in this process, on the torch that is installed.
"""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import PATIENCE
from support.fixtures import ranks

__all__ = ["ranks"]

HERE = Path(__file__).parent
RunRanks = Callable[[str, int], list[Any]]


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """`run_ranks(function, count)`: a function of rank_program.py on so many ranks; what each returned."""

    def call(function: str, count: int) -> list[Any]:
        out = tmp_path_factory.mktemp(function)
        finished = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)),
                *(str(HERE / "rank_program.py"), function, str(out)),
            ],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert finished.returncode == 0, finished.stderr
        return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(count)]

    return call
