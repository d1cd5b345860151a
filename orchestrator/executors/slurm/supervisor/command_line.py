"""`python -m orchestrator.batch RUN_DIR [options] -- SRUN… -- TRAINING…`: what a batch script of ours becomes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.executors.slurm.supervisor.supervisor import Commands, supervise
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved

SEPARATOR = "--"


def main() -> int:
    """Supervise one incarnation; returns the exit code of the batch script."""
    own, on_each_node, training = split(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="python -m orchestrator.batch", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--from-scratch", action="store_true", help="start a run anew that has no checkpoint")
    parser.add_argument("--time-limit", metavar="SECONDS", type=float, help="of the job, as it was asked for")
    parser.add_argument("--health-check", action="store_true", help="check the nodes before the training")
    arguments = parser.parse_args(own)
    run = RunDir(arguments.run_dir)
    try:
        job, slurm = load_resolved(run.resolved()), SlurmJob.of(time_limit=arguments.time_limit)
        commands = Commands(on_each_node, training, arguments.health_check, arguments.from_scratch)
        return supervise(run, job, slurm, commands)
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def split(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Our own arguments, what starts a program on each node, and the training program."""
    first = arguments.index(SEPARATOR)
    second = arguments.index(SEPARATOR, first + 1)
    return arguments[:first], arguments[first + 1 : second], arguments[second + 1 :]
