"""The MLflow run of a sweep, of which the runs of its cells are children. Made once, by the cell that is sent first."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

from orchestrator.rundir import RunDir, write_atomically
from orchestrator.tracking.cursor import FILE_NAME, Cursor
from orchestrator.tracking.locking import alone

CHILD_TAG = "orchestrator.sweep"
PARENT_TAG = "orchestrator.sweep_name"
SWEEP_DIR_TAG = "orchestrator.sweep_dir"
_LOCK_FILE = "mlflow.lock"
_LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class Parent:
    """The MLflow run of a sweep, and the tags that make a run its child."""

    run_id: str
    tags: dict[str, str]


def find_or_create_parent(client: MlflowClient, run: RunDir, cursor: Cursor) -> Parent | None:
    """The parent of a run that is a cell of a sweep; None for any other. `cursor`: where the run itself is sent.

    Raises BusyError when another process holds the sweep's lock for long, and whatever MLflow raises.
    """
    membership = _read_object(run.membership)
    if not membership:
        return None
    name = str(membership.get("sweep"))
    home = run.path.parent.parent / "sweeps" / name  # where it is now, should the folder have moved
    if not home.is_dir():
        return None
    tags = {CHILD_TAG: name, "orchestrator.cell": str(membership.get("cell"))}
    with alone(home / _LOCK_FILE, _LOCK_SECONDS, f"another process is sending sweep {name}"):
        run_id = _known(client, home, cursor) or _by_tag(client, home, cursor) or _create(client, name, home, cursor)
        _remember(home, cursor, run_id)
    return Parent(run_id, {**tags, "mlflow.parentRunId": run_id, "mlflow.runName": tags["orchestrator.cell"]})


def _known(client: MlflowClient, home: Path, cursor: Cursor) -> str | None:
    run_id = _read_object(home / FILE_NAME).get(_key(cursor))
    if run_id is None:
        return None
    try:
        found = client.get_run(str(run_id))
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None  # the store was lost
        raise
    return str(run_id) if found.info.lifecycle_stage == "active" else None


def _by_tag(client: MlflowClient, home: Path, cursor: Cursor) -> str | None:
    found = client.search_runs(
        [cursor.experiment_id],
        filter_string=f"tags.`{PARENT_TAG}` = '{home.name}'",
        run_view_type=ViewType.ACTIVE_ONLY,
        order_by=["attributes.start_time ASC"],
    )
    return next((str(run.info.run_id) for run in found if run.data.tags.get(SWEEP_DIR_TAG) == str(home)), None)


def _create(client: MlflowClient, name: str, home: Path, cursor: Cursor) -> str:
    tags = {PARENT_TAG: name, SWEEP_DIR_TAG: str(home)}
    made = client.create_run(cursor.experiment_id, int(time.time() * 1000), tags, run_name=name)
    return str(made.info.run_id)


def _remember(home: Path, cursor: Cursor, run_id: str) -> None:
    known = _read_object(home / FILE_NAME)
    if known.get(_key(cursor)) != run_id:
        write_atomically(home / FILE_NAME, json.dumps({**known, _key(cursor): run_id}, indent=1) + "\n")


def _key(cursor: Cursor) -> str:
    return f"{cursor.store} {cursor.experiment_id}"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
