"""Addresses of a run in MLflow and in the dashboard, from the run directory and the environment alone."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from orchestrator.errors import UserError
from orchestrator.fields.values import resolve_environment
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.mlflow.cursor import read_cursor

DASHBOARD_VARIABLE = "ORCHESTRATOR_DASHBOARD_URL"

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_SHOWN = re.compile(r"\$\{env:\w*MLFLOW\w*\}|(?:(?!\$\{env:).)*")
"""An address that names no variable, or is one of MLflow's. A run directory may be anybody's: no other variable of who
looks at it is shown on a page.
"""


def mlflow_url(run: RunDir) -> str | None:
    """The page of the run in MLflow, without credentials. None for a run that was not sent yet, for a store that is no
    server (`mlflow server` over a sqlite file has any address), and where a variable of the address is not set, or has
    no MLFLOW in its name.
    """
    cursor = read_cursor(run)
    if cursor is None or _SHOWN.fullmatch(cursor.store) is None:
        return None
    try:
        address = resolve_environment(cursor.store)
    except UserError:
        return None
    if not address.startswith(("http://", "https://")):
        return None
    base = _CREDENTIALS.sub("", address).rstrip("/")
    return f"{base}/#/experiments/{quote(cursor.experiment_id)}/runs/{quote(cursor.run_id)}"


def dashboard_url(run: RunDir, base: str | None) -> str | None:
    """The page of the run in the dashboard at `base`, else at $ORCHESTRATOR_DASHBOARD_URL; None without either."""
    base = base or os.environ.get(DASHBOARD_VARIABLE)
    return f"{base.rstrip('/')}/runs/{quote(run.name)}/{quote(run.run_id)}" if base else None
