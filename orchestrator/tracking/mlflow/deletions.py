"""Deleting in MLflow what lies in the trash of a runs folder, and restoring what was put back."""

from __future__ import annotations

import orchestrator.tracking.mlflow.plain_mlflow  # noqa: F401 (decides how mlflow is imported)

# isort: split

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from orchestrator.run_directory.events.labels import Restored
from orchestrator.run_directory.labels import label_events
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import Trashed
from orchestrator.tracking.locks import alone
from orchestrator.tracking.mlflow.cursor import Cursor, write_cursor
from orchestrator.tracking.mlflow.store import connect

LOCK_FILE = "mlflow.lock"
_LOCK_SECONDS = 30.0
_RESTORED = "restored"
"""What a cursor notes: of which putting back MLflow was told."""


def delete_there(entry: Trashed) -> None:
    """Delete the MLflow runs of something in the trash, and write down that it is done. One that is deleted already, or
    gone with its store, is as it should be. Raises what MLflow and what lies under it raise.
    """
    with alone(entry.path / LOCK_FILE, _LOCK_SECONDS, "another process is telling MLflow of this deletion"):
        for known in entry.mlflow:
            uri = known.get("uri")
            client = connect(entry.runs_dir, None if uri is None else str(uri))
            try:
                client.delete_run(str(known.get("run_id")))
            except MlflowException as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
                _check_gone(client, str(known.get("run_id")), error)
        entry.without_mlflow()


def restore_there(client: MlflowClient, run: RunDir, cursor: Cursor | None) -> None:
    """Restore the MLflow run of a run that was put back from the trash, once: whoever deletes it in MLflow afterwards
    means it.
    """
    back = [event for event in label_events(run.path) if isinstance(event, Restored)]
    if cursor is None or not back or cursor.sent.get(_RESTORED) == str(back[-1].time):
        return
    try:
        if client.get_run(cursor.run_id).info.lifecycle_stage == "deleted":
            client.restore_run(cursor.run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    cursor.sent[_RESTORED] = str(back[-1].time)
    write_cursor(run, cursor)


def _check_gone(client: MlflowClient, run_id: str, refused: MlflowException) -> None:
    """Raises the refusal again where the run is still there."""
    try:
        found = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return
        raise
    if found.info.lifecycle_stage != "deleted":
        raise refused
