"""`mlflow server`, which goes on as the server instead of starting one: forked (ranks.py) it need not import MLflow,
which takes each of the two four seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import mlflow.server
import uvicorn
from mlflow.cli import cli


def become(command: Sequence[str], *, extra_env: Mapping[str, str], **_: Any) -> None:
    """Be the program that MLflow starts: `python -m uvicorn …`."""
    os.environ.update(extra_env)
    uvicorn.main(command[3:])


if __name__ == "__main__":
    mlflow.server._exec_cmd = become
    cli(prog_name="mlflow")
