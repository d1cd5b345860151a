"""The MLflow run of a sweep, of which the runs of its cells are children.

Made once, by the cell that is sent first, and brought up to date by each cell that begins or ends, from what the store
holds of all of them.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import RunTag, ViewType
from mlflow.exceptions import MlflowException

from orchestrator.files.stored_files import read_object
from orchestrator.run_directory.rundir import RunDir, membership_of, write_atomically
from orchestrator.tracking.locks import alone
from orchestrator.tracking.mlflow import limits
from orchestrator.tracking.mlflow.children import CELL_TAG, PARENT_ID_TAG, adopted_cells, children_of
from orchestrator.tracking.mlflow.cursor import FILE_NAME, Cursor
from orchestrator.tracking.mlflow.sweep_summary import created, newest_plan, status_of, summary_tags
from orchestrator.tracking.mlflow.tags import NOTE_TAG

CHILD_TAG = "orchestrator.sweep"
PARENT_TAG = "orchestrator.sweep_name"
SWEEP_DIR_TAG = "orchestrator.sweep_dir"
_LOCK_FILE = "mlflow.lock"
_LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class Parent:
    """The MLflow run of a sweep. `home`: the sweep's directory; `tags`: what makes a run its child; `child_name`: what
    that child is called.
    """

    run_id: str
    home: Path
    child_name: str
    tags: dict[str, str]


def find_or_create_parent(client: MlflowClient, run: RunDir, cursor: Cursor) -> Parent | None:
    """The parent of a run that is a cell of a sweep; None for any other. `cursor`: where the run itself is sent.

    Raises BusyError when another process holds the sweep's lock for long, and whatever MLflow raises.
    """
    membership = membership_of(run)
    if not membership:
        return None
    name, cell = str(membership.get("sweep")), str(membership.get("cell"))
    home = run.path.parent.parent / "sweeps" / name  # where it is now, should the folder have moved
    if Path(name).name != name or not home.is_dir():
        return None
    with _lock(home):
        run_id = _known(client, home, cursor) or _by_tag(client, home, cursor) or _create(client, home, cursor)
        _remember(home, _key(cursor), run_id)
    return Parent(run_id, home, cell, {CHILD_TAG: name, CELL_TAG: cell, PARENT_ID_TAG: run_id})


def update_parent(client: MlflowClient, parent: Parent, cursor: Cursor) -> None:
    """Bring status, end and tags of a sweep's run up to date. To be called after a child's own state was sent: of
    several children that end at once the last one to come here finds all of them ended.

    Raises like `find_or_create_parent`.
    """
    with _lock(parent.home):
        plan = newest_plan(parent.home)
        children = list(children_of(client, parent.home, parent.run_id, plan.metric if plan else None, cursor).values())
        adopted = adopted_cells(client, parent.home, plan, children, cursor)
        tags = summary_tags(parent.home, plan, [*children, *adopted])
        key, known = f"note {_key(cursor)}", read_object(parent.home / FILE_NAME, parent.home)
        written = client.get_run(parent.run_id).data.tags.get(NOTE_TAG)
        if written is not None and known.get(key) != written:
            del tags[NOTE_TAG]  # a person wrote it
        else:
            _remember(parent.home, key, limits.truncated(tags[NOTE_TAG], limits.TAG_LENGTH))
        batch = [RunTag(key, limits.truncated(value, limits.TAG_LENGTH)) for key, value in tags.items()]
        client.log_batch(parent.run_id, tags=batch, synchronous=True)
        status, ended = status_of(children)
        if ended is None:
            client.update_run(parent.run_id, status=status)
        else:
            client.set_terminated(parent.run_id, status, end_time=ended)


def _lock(home: Path) -> AbstractContextManager[None]:
    return alone(home / _LOCK_FILE, _LOCK_SECONDS, f"another process is sending sweep {home.name}")


def _known(client: MlflowClient, home: Path, cursor: Cursor) -> str | None:
    run_id = read_object(home / FILE_NAME, home).get(_key(cursor))
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


def _create(client: MlflowClient, home: Path, cursor: Cursor) -> str:
    tags = {PARENT_TAG: home.name, SWEEP_DIR_TAG: str(home)}
    tags |= {"mlflow.source.type": "JOB", "mlflow.source.name": f"orchestrator sweep {home.name}"}
    begun = created(home) or time.time()
    made = client.create_run(cursor.experiment_id, int(begun * 1000), tags, run_name=home.name)
    return str(made.info.run_id)


def _remember(home: Path, key: str, value: str) -> None:
    known = read_object(home / FILE_NAME, home)
    if known.get(key) != value:
        write_atomically(home / FILE_NAME, json.dumps({**known, key: value}, indent=1) + "\n")


def _key(cursor: Cursor) -> str:
    return f"{cursor.store} {cursor.experiment_id}"
