"""`orchestrator data`: its commands start the program `python -m orchestrator.data`, which has the same ones.

Only `index` is not one of them: how many samples there are is the plan's to say, which `data/` knows nothing of.
"""

from __future__ import annotations

import os
import subprocess

from orchestrator.api.starts.data_preparation import refuse_killed
from orchestrator.cli.models import indexing
from orchestrator.data.commands import Request, build_app
from orchestrator.data.request import to_arguments
from orchestrator.launch.processes.child_commands import tied
from orchestrator.safe_path import module_command


def run(command: str, request: Request, as_json: bool) -> int:
    """Start the program, which ends when this process is killed; returns its exit code. Raises JobError where it was
    killed itself."""
    arguments = [*(["--json"] if as_json else []), *to_arguments(request)]
    # What Pillow warns its programmers of in people's photographs is no news to them.
    variables = {**os.environ, "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore")}
    process = subprocess.Popen(tied(*module_command("orchestrator.data", command, *arguments)), env=variables)
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C reaches the program as well; it ends by itself and says what was kept
        refuse_killed(code, f"data {command}")
        return code


app = build_app(run)
app.command("index")(indexing.command)
