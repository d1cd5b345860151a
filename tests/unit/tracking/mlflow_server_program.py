"""`mlflow server`, forked from a process that has imported it: `mlflow_server_program PID_FILE OPTIONS…`.

That command starts uvicorn as a program of its own, which imports everything again: here it goes on as uvicorn itself.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlflow.server
import uvicorn
from mlflow.cli import cli

_OF_OUR_CLIENT = "MLFLOW_SQLALCHEMYSTORE_POOLCLASS"
"""What `orchestrator.tracking.mlflow.environment` sets, and would concern a server."""


def become_uvicorn(command: Sequence[str], *, extra_env: Mapping[str, str], **_: Any) -> None:
    """Do what the program would that MLflow starts."""
    assert command[1:3] == ["-m", "uvicorn"]
    os.environ.update(extra_env)
    uvicorn.main(command[3:])


def main() -> None:
    """Serve, until somebody kills the process whose id is in the file."""
    Path(sys.argv[1]).write_text(str(os.getpid()))
    os.environ.pop(_OF_OUR_CLIENT, None)
    logging.disable(logging.NOTSET)
    with patch.object(mlflow.server, "_exec_cmd", become_uvicorn):
        cli(["server", *sys.argv[2:]])


if __name__ == "__main__":
    main()
