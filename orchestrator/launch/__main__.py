"""`python -m orchestrator.launch RUN_DIR [--job ID] [--from-scratch]`: the launcher in the background, for
`run --detach`, and in the job of an executor.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.launch.local.restarts import launch_with_restarts
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.loading import load_resolved


def main() -> int:
    """Launch a run that exists; returns the exit code of its end."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.launch", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--from-scratch", action="store_true", help="start a run anew that has no checkpoint")
    parser.add_argument("--job", metavar="ID", help="of the executor's job that this runs in")
    parser.add_argument("--module", default=RUNTIME_MODULE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    run = RunDir(arguments.run_dir.resolve())
    try:
        job = load_resolved(run.resolved())
        end = launch_with_restarts(
            run, job, from_scratch=arguments.from_scratch, module=arguments.module, job_id=arguments.job
        )
        return end.code
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
