"""`python -m orchestrator.sweeps < REQUEST`: run cells on this machine; see request.py."""

from __future__ import annotations

import os
import sys

# Before submitit is imported: the signal that stops a cell, which is also the one our programs know.
os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")

from orchestrator.errors import OrchestratorError
from orchestrator.sweeps.executor import run_here
from orchestrator.sweeps.request import Request


def main() -> int:
    """Do what the request on standard input asks; returns the exit code."""
    try:
        run_here(Request.from_json(sys.stdin.read()))
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
