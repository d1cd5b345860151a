"""`python -m orchestrator.sweeps < REQUEST`: hand cells to SLURM, or run them on this machine; see request.py."""

from __future__ import annotations

import json
import os
import sys

# Before submitit is imported: the signal that SLURM's notice comes by, which is also the one our programs know.
os.environ.setdefault("SUBMITIT_PREEMPT_SIGNAL", "USR1")

from orchestrator.errors import OrchestratorError
from orchestrator.sweeps.executor import run_here, submit_arrays
from orchestrator.sweeps.request import Request


def main() -> int:
    """Do what the request on standard input asks; returns the exit code."""
    request = Request.from_json(sys.stdin.read())
    try:
        if request.how == "local":
            run_here(request)
        else:
            submit_arrays(request, say)
    except OrchestratorError as error:
        say({"error": type(error).__name__, "message": str(error), "exit_code": error.exit_code})
        return error.exit_code
    return 0


def say(record: dict[str, object]) -> None:
    """One line of the answer."""
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
