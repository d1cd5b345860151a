"""A program for `RankStarter`: ranks that train one job after the other in the same processes, each when it is asked
for (`warm_ranks.py`). FOLDER has a pipe for each rank, ask-RANK, with a line for each job, and one for all, done, which
gets a byte of each rank for each job.

A job after the first takes half of what it takes in processes of its own: what Python and torch do when a function is
called for the first time is done. The first that fails ends the processes, as it does by itself.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from orchestrator.runtime.__main__ import main as train
from orchestrator.runtime.callbacks.saving import CheckpointSaving

SAVING: Any = CheckpointSaving  # what is injected replaces a method of it
SAVES_ALL = SAVING.on_end


def main() -> int:
    """The exit code of the job that failed, 0 when no more are asked for."""
    folder, rank, variables = Path(sys.argv[1]), os.environ["RANK"], dict(os.environ)
    with open(folder / f"ask-{rank}") as asked, open(folder / "done", "wb", buffering=0) as done:
        for line in asked:
            job = json.loads(line)
            os.environ.clear()
            os.environ.update(variables, MASTER_PORT=job["port"], ORCHESTRATOR_LAUNCH_ID=job["launch_id"])
            if job["core"] is not None:
                os.sched_setaffinity(0, {job["core"]})
            SAVING.on_end = SAVES_ALL
            if job["saved"]:
                runpy.run_path(job["saved"])
            sys.argv = ["orchestrator.runtime", job["run_dir"]]
            if code := train():
                return code
            done.write(b".")
    return 0
