"""Finding or making the one MLflow run of a run directory, in a server or in the sqlite store of the runs folder."""

from __future__ import annotations

import orchestrator.tracking.mlflow.plain_mlflow  # noqa: F401 (decides how mlflow is imported)

# isort: split
import errno
import os
import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from orchestrator.errors import OrchestratorError
from orchestrator.fields.values import resolve_environment
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.description import Target
from orchestrator.tracking.mlflow.cursor import Cursor
from orchestrator.tracking.mlflow.tags import RUN_DIR_TAG, RUN_ID_TAG, label

DEFAULT_STORE = "mlflow.db"
ARTIFACTS = "mlartifacts"
_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Has MLflow's pages show an experiment's runs, and not what they have for conversations with a language model."""
_REMOTE_SCHEMES = ("http://", "https://", "databricks")
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}


class DeletedInStoreError(OrchestratorError):
    """Someone deleted the run or its experiment in MLflow; only they can say that it should come back."""

    code = "deleted_in_store"


def connect(runs_dir: Path, uri: str | None) -> MlflowClient:
    """A client of the store at `uri`, resolved here and nowhere else; the runs folder's own store for None.

    Raises UserError when a variable that the address refers to is not set.
    """
    if uri is not None:
        resolved = resolve_environment(uri)
        return MlflowClient(tracking_uri=resolved, registry_uri=resolved)
    database = runs_dir / DEFAULT_STORE
    if not database.exists():
        _create_store(database, _artifact_root(runs_dir))
    address = f"sqlite:///{database}"
    return MlflowClient(tracking_uri=address, registry_uri=address)


def find_or_create(client: MlflowClient, run: RunDir, target: Target, known: Cursor | None) -> Cursor:
    """The cursor of this run's MLflow run: the known one where the store still has it, else one found by its tags,
    else a new one, which starts at the first metric.

    Raises DeletedInStoreError, and MlflowException or what lies under it when the store cannot be reached or refuses.
    """
    store = target.uri or "default"
    if known is not None and known.store == store:
        found = _get_run(client, known.run_id)
        if found is not None and not _belongs_to_another(found, run):
            return known
    experiment_id = _experiment(client, run, target)
    found = _find_by_tags(client, experiment_id, run)
    if found is None:
        tags = {RUN_ID_TAG: run.run_id, RUN_DIR_TAG: str(run.path)}
        started = next((event.time for event in run.events() if event.time is not None), time.time())
        found = client.create_run(experiment_id, milliseconds(started), tags, run_name=label(run))
    return Cursor(store=store, experiment_id=experiment_id, run_id=found.info.run_id)


def milliseconds(seconds: float) -> int:
    """A time as MLflow counts it."""
    return int(seconds * 1000)


def _get_run(client: MlflowClient, run_id: str) -> Run | None:
    try:
        found = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    if found.info.lifecycle_stage == "deleted":
        raise DeletedInStoreError(f"its MLflow run {run_id} was deleted there; restore it to continue it")
    return found


def _belongs_to_another(found: Run, run: RunDir) -> bool:
    """Whether this run directory is a copy of the one that the MLflow run describes; a moved one is not."""
    home = Path(found.data.tags.get(RUN_DIR_TAG, run.path))
    return home.is_dir() and not home.samefile(run.path)


def _find_by_tags(client: MlflowClient, experiment_id: str, run: RunDir) -> Run | None:
    candidates = client.search_runs(
        [experiment_id],
        filter_string=f"tags.`{RUN_ID_TAG}` = '{run.run_id}'",
        run_view_type=ViewType.ACTIVE_ONLY,
        order_by=["attributes.start_time ASC"],
    )
    return next((found for found in candidates if found.data.tags.get(RUN_DIR_TAG) == str(run.path)), None)


def _experiment(client: MlflowClient, run: RunDir, target: Target) -> str:
    """The experiment's id; made where it does not exist, also when several processes make it at once."""
    found = client.get_experiment_by_name(target.experiment)
    if found is None:
        local = not (target.uri and resolve_environment(target.uri).startswith(_REMOTE_SCHEMES))
        location = _artifact_root(run.path.parent.parent) if local else None
        try:
            return str(client.create_experiment(target.experiment, artifact_location=location, tags=_KIND))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = client.get_experiment_by_name(target.experiment)
    if found is None or found.lifecycle_stage == "deleted":
        raise DeletedInStoreError(
            f"the MLflow experiment {target.experiment!r} was deleted there; restore it or name another"
        )
    return str(found.experiment_id)


def _artifact_root(runs_dir: Path) -> str:
    return (runs_dir / ARTIFACTS).as_uri()


def _create_store(database: Path, artifact_root: str) -> None:
    """Make a whole store under another name and link it into place: a process killed meanwhile leaves no half of
    one, and of several that make it at once the first wins.
    """
    temporary = database.with_name(f".{database.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        SqlAlchemyStore(f"sqlite:///{temporary}", artifact_root)  # type: ignore[no-untyped-call]
        try:
            os.link(temporary, database)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            os.rename(temporary, database)
    finally:
        temporary.unlink(missing_ok=True)
