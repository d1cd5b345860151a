"""`python -m orchestrator.sweeps.search SWEEP_DIR`: search as the sweep's ledger says; see __init__.py."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Before submitit is imported: the signal that stops a cell, which is also the one our programs know.
os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")

from orchestrator.errors import OrchestratorError
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.search.program import search


def main() -> int:
    """Search to the end; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.sweeps.search", description=__doc__)
    parser.add_argument("sweep_dir", type=Path)
    parser.add_argument("--module", default=RUNTIME_MODULE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        search(SweepDir(arguments.sweep_dir), arguments.module)
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
