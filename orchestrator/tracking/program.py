"""The program that sends run directories to MLflow.

    python -m orchestrator.tracking RUN_DIR --follow --parent PID    beside a training run, until PID is gone
    python -m orchestrator.tracking RUN_DIR… --once                  what is not sent yet; one JSON line per run

Exit code 0: everything was sent; 1: something was not, and the log or the JSON line says why.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.rundir import RunDir
from orchestrator.tracking.description import read_target
from orchestrator.tracking.failures import explain, is_locked, is_unreachable
from orchestrator.tracking.follower import DRAIN_SECONDS
from orchestrator.tracking.following import Follower
from orchestrator.tracking.sender import Sender

_PATIENCE_SECONDS = 30.0


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking")
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--follow", action="store_true", help="send one run as it goes on")
    mode.add_argument("--once", action="store_true", help="send what is not sent yet and end")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="pid of the training process")
    parser.add_argument("--drain-seconds", type=float, default=DRAIN_SECONDS, help="time to send the rest at the end")
    options = parser.parse_args(arguments)
    runs = [RunDir(path.resolve()) for path in options.run_dirs]
    if options.follow:
        _enter_runs_folder(runs[0])
        return Follower(runs[0], options.parent, options.drain_seconds).follow()
    return send_once(runs)


def send_once(runs: list[RunDir]) -> int:
    """Send what is not sent yet of each run and print one JSON object per run; returns the exit code."""
    code = 0
    unreachable: dict[str | None, str] = {}
    for run in runs:
        sender = Sender(run)
        state, message, uri = "sent", "", None
        try:
            _enter_runs_folder(run)
            target = read_target(run)
            uri = target.uri
            if not target.enabled:
                state, message = "off", "tracking.mlflow is false in its spec"
            elif uri in unreachable:
                state, message = "failed", unreachable[uri]
            else:
                _send_patiently(sender)
        except Exception as error:  # whatever MLflow or its back ends raise: the run directory keeps everything
            state, message = "failed", explain(error, uri)
            if not isinstance(error, OrchestratorError) and is_unreachable(error):
                unreachable[uri] = message
        record = {"run_id": run.run_id, "run_dir": str(run.path), "state": state, "message": message}
        print(json.dumps(record | {"metrics": sender.num_metrics, "mlflow_run_id": sender.mlflow_run_id}), flush=True)
        if state == "failed":
            code = 1
    return code


def _send_patiently(sender: Sender) -> None:
    """Send; while others write to the same sqlite store, try again."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return sender.send(lock_seconds=_PATIENCE_SECONDS)
        except Exception as error:
            if not is_locked(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _enter_runs_folder(run: RunDir) -> None:
    """An address like sqlite:///my.db and MLflow's own defaults count from there, wherever this was started."""
    os.chdir(run.path.parent.parent)
