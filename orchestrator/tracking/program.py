"""The program that sends run directories to their trackers.

    python -m orchestrator.tracking RUN_DIR --follow --parent PID    beside a training run, until PID is gone
    python -m orchestrator.tracking RUN_DIR… --once                  what is not sent yet; one JSON line per run; of an
                                                                     entry of a trash, its MLflow runs are deleted

Exit code 0: everything was sent; 1: something was not, and the log or the JSON line says why.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from orchestrator.errors import MissingDependency, OrchestratorError
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import Trashed, entry_at
from orchestrator.tracking.description import read_target
from orchestrator.tracking.follower import DRAIN_SECONDS
from orchestrator.tracking.follower_loop import Follower
from orchestrator.tracking.locks import BusyError
from orchestrator.tracking.mlflow.cursor import read_cursor
from orchestrator.tracking.mlflow.failures import explain, is_locked, is_unreachable
from orchestrator.tracking.trackers import Tracker, asked_for, broken, tracker_of

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
    unreachable: dict[str, str] = {}
    record: dict[str, Any]
    for run in runs:
        if (entry := entry_at(run.path)) is not None:
            record = _delete_in_mlflow(entry)
            code = max(code, int(record["state"] == "failed"))
            print(json.dumps(record), flush=True)
            continue
        record = {"run_id": run.run_id, "run_dir": str(run.path), "state": "sent", "message": ""}
        record |= {"metrics": 0, "mlflow_run_id": None}
        problems = []
        try:
            _enter_runs_folder(run)
            names = asked_for(run)
            if not names:
                record |= {"state": "off", "message": "tracking.mlflow is false in its spec"}
        except (OrchestratorError, OSError) as error:
            names = []
            problems.append(str(error))
        for name in names:
            problem = _send(run, name, record, unreachable)
            problems += [problem] if problem else []
        if problems:
            code = 1
            record |= {"state": "failed", "message": "; ".join(problems)}
        print(json.dumps(record), flush=True)
    return code


def _delete_in_mlflow(entry: Trashed) -> dict[str, Any]:
    """Delete the MLflow runs of what lies in the trash; what came of it."""
    from orchestrator.tracking.mlflow.deletions import delete_there  # imports mlflow

    record = {"name": entry.name, "run_dir": str(entry.path), "state": "deleted", "message": ""}
    os.chdir(entry.runs_dir)
    try:
        delete_there(entry)
    except Exception as error:  # whatever MLflow raises: the entry keeps what is to be done
        uri = next((each.get("uri") for each in entry.mlflow), None)
        record |= {"state": "failed", "message": explain(error, None if uri is None else str(uri))}
    return record


def _send(run: RunDir, name: str, record: dict[str, Any], unreachable: dict[str, str]) -> str | None:
    """Send one run to one tracker and add what came of it to the record; returns what went wrong."""
    place = f"{name} {read_target(run).uri}"
    if place in unreachable:
        return unreachable[place]
    try:
        tracker = tracker_of(run, name)
    except MissingDependency as error:
        return str(error)
    except Exception as error:  # whatever a broken package raises: the other trackers and runs go on
        return f"nothing is sent to {name}: {broken(error)}"
    try:
        _send_patiently(tracker)
        tracker.close()
    except BusyError as error:
        return tracker.explain(error) if name == "mlflow" else None  # the others are their follower's while it lives
    except Exception as error:  # whatever a tracker's library raises: the run directory keeps everything
        problem = tracker.explain(error)
        if not isinstance(error, OrchestratorError) and is_unreachable(error):
            unreachable[place] = problem
        return problem
    finally:
        record["metrics"] += tracker.num_metrics
    if name == "mlflow" and (cursor := read_cursor(run)) is not None:
        record["mlflow_run_id"] = cursor.run_id
    return None


def _send_patiently(tracker: Tracker) -> None:
    """Send; while others write to the same sqlite store, try again."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return tracker.send(lock_seconds=_PATIENCE_SECONDS)
        except Exception as error:
            if not is_locked(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def _enter_runs_folder(run: RunDir) -> None:
    """An address like sqlite:///my.db and MLflow's own defaults count from there, wherever this was started."""
    os.chdir(run.path.parent.parent)
