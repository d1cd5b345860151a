"""One pass of sending a run directory to MLflow: what was not sent yet, and nothing twice that could do harm."""

from __future__ import annotations

import orchestrator.tracking.mlflow.plain_mlflow  # noqa: F401 (decides how mlflow is imported)

# isort: split
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Param, RunTag

from orchestrator.run_directory.results.record import metric_values, read_result, result_paths
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.description import Description, Ending, State, describe, description_signature, read_target
from orchestrator.tracking.locks import alone
from orchestrator.tracking.measurements.metrics import Metric, MetricTail
from orchestrator.tracking.measurements.system import read_measurements, system_logs
from orchestrator.tracking.mlflow import limits
from orchestrator.tracking.mlflow.cursor import Cursor, read_cursor, unsent_bytes, write_cursor
from orchestrator.tracking.mlflow.datasets import dataset_inputs
from orchestrator.tracking.mlflow.deletions import LOCK_FILE, restore_there
from orchestrator.tracking.mlflow.failures import explain
from orchestrator.tracking.mlflow.parents import Parent, find_or_create_parent, update_parent
from orchestrator.tracking.mlflow.store import connect, find_or_create, milliseconds
from orchestrator.tracking.mlflow.tags import NAME_TAG, NOTE_TAG, label, note_begins
from orchestrator.tracking.trackers import LONGEST_WAIT_SECONDS

_Item = TypeVar("_Item")

EVALUATIONS = "evaluations"

# With the values of an ordinary step, about one batch.
_RECORDS_PER_READ = 90
_CHANGED_PREFIX = "orchestrator.changed."
_STATUS: dict[State, str] = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


@dataclass
class Sender:
    """Sends one run, pass by pass. Each pass asks the store whether it still has the run, so that a store that was
    lost is filled anew.

    `num_metrics`: values sent so far.
    """

    run: RunDir
    ending: Ending = field(default_factory=Ending)
    num_metrics: int = 0
    longest_wait_seconds: float = LONGEST_WAIT_SECONDS
    mlflow_run_id: str | None = None
    _described: object = None
    _uri: str | None = None

    def send(self, lock_seconds: float = 5.0) -> None:
        """Send what is not sent yet. Raises OrchestratorError, and whatever MLflow and what lies under it raise."""
        with alone(self.run.path / LOCK_FILE, lock_seconds, "another process is sending this run"):
            target = read_target(self.run)
            self._uri = target.uri
            client = connect(self.run.path.parent.parent, target.uri)
            known = read_cursor(self.run)
            restore_there(client, self.run, known)
            cursor = find_or_create(client, self.run, target, known)
            if cursor is not known:
                write_cursor(self.run, cursor)
                self._described = None
            self.mlflow_run_id = cursor.run_id

            signature = (description_signature(self.run), replace(self.ending))
            description = describe(self.run, self.ending) if signature != self._described else None
            parent = None
            if description is not None:
                parent = find_or_create_parent(client, self.run, cursor)
                if parent is not None:
                    description = replace(description, tags={**description.tags, **parent.tags})
                self._send_params_and_tags(client, cursor, description, parent)
            self._send_metrics(client, cursor)
            self._send_evaluations(client, cursor)
            if description is not None:
                self._send_state(client, cursor, description, parent)
                self._send_files(client, cursor, description.files)
            # What is missed least comes last: after an outage there is much of it, and a store may refuse inputs.
            self._send_system(client, cursor)
            if description is not None:
                self._send_inputs(client, cursor, description.inputs)
            self._described = signature

    def close(self) -> None:
        """Nothing is held between two passes."""

    def explain(self, error: BaseException) -> str:
        """One line that says what went wrong, free of what the address refers to."""
        return explain(error, self._uri)

    def bytes_left(self) -> int:
        """How much of metrics.jsonl is not sent yet."""
        return unsent_bytes(self.run)

    def _send_metrics(self, client: MlflowClient, cursor: Cursor) -> None:
        tail = MetricTail(self.run.metrics_file, cursor.offset)
        while records := tail.poll(_RECORDS_PER_READ):
            values = [value for record in records for value in _values(record)]
            for batch in _batches(values, limits.METRICS_PER_BATCH):
                client.log_batch(cursor.run_id, metrics=batch, synchronous=True)
            cursor.offset = tail.offset
            write_cursor(self.run, cursor)
            self.num_metrics += len(values)

    def _send_system(self, client: MlflowClient, cursor: Cursor) -> None:
        """How busy each node was; of the first as MLflow's own pages know it."""
        while True:
            values, offsets = [], {}
            for node, path in system_logs(self.run).items():
                place = "system/" if node == 0 else f"system/node-{node}/"
                known = cursor.system.get(path.name, 0)
                measured, offset = read_measurements(path, known, _RECORDS_PER_READ)
                if offset == known:
                    continue
                offsets[path.name] = offset
                values += [
                    MlflowMetric(limits.entity_name(place + name), value, milliseconds(each.time), each.iteration)
                    for each in measured
                    for name, value in each.flat().items()
                ]
            if not offsets:
                return
            for batch in _batches(values, limits.METRICS_PER_BATCH):
                client.log_batch(cursor.run_id, metrics=batch, synchronous=True)
            cursor.system |= offsets
            write_cursor(self.run, cursor)
            self.num_metrics += len(values)

    def _send_evaluations(self, client: MlflowClient, cursor: Cursor) -> None:
        """What was measured of checkpoints, each result once; one that was measured again is sent again."""
        for path in result_paths(self.run):
            result = read_result(path)
            digest = "" if result is None else str(result.finished)
            if result is None or cursor.sent.get(f"{EVALUATIONS}/{path.name}") == digest:
                continue
            measured = milliseconds(result.finished)
            values = [
                MlflowMetric(limits.entity_name(name), value, measured, result.iteration)
                for name, value in metric_values(result).items()
            ]
            for batch in _batches(values, limits.METRICS_PER_BATCH):
                client.log_batch(cursor.run_id, metrics=batch, synchronous=True)
            self._mark(cursor, f"{EVALUATIONS}/{path.name}", digest)
            self.num_metrics += len(values)

    def _send_params_and_tags(
        self, client: MlflowClient, cursor: Cursor, description: Description, parent: Parent | None
    ) -> None:
        digest = _digest([description.params, description.current_params, description.tags])
        if cursor.sent.get("params and tags") == digest:
            return
        found = client.get_run(cursor.run_id)
        stored = found.data
        missing = {name: value for name, value in _params(description.params).items() if name not in stored.params}
        # A parameter of an MLflow run cannot change: what a later start changed becomes a tag.
        before, tags = missing | stored.params, dict(description.tags)
        for name, value in _params(description.current_params).items():
            tag = _CHANGED_PREFIX + name
            if value != before.get(name) or tag in stored.tags:
                tags[tag] = value
        if self._is_a_persons(stored.tags.get(NOTE_TAG), cursor):
            del tags[NOTE_TAG]
        if parent is not None and found.info.run_name == label(self.run):  # no person named it
            tags.setdefault(NAME_TAG, parent.child_name)
        for params in _batches([Param(name, value) for name, value in missing.items()], limits.PARAMS_PER_BATCH):
            client.log_batch(cursor.run_id, params=params, synchronous=True)
        for batch in _batches(_tags(tags), limits.TAGS_PER_BATCH):
            client.log_batch(cursor.run_id, tags=batch, synchronous=True)
        if NOTE_TAG in tags:
            cursor.sent[NOTE_TAG] = _digest(tags[NOTE_TAG])
        self._mark(cursor, "params and tags", digest)

    def _is_a_persons(self, note: str | None, cursor: Cursor) -> bool:
        """Whether someone wrote it in MLflow; where the cursor was lost ours is known by how it begins."""
        if note is None:
            return False
        sent = cursor.sent.get(NOTE_TAG)
        return sent != _digest(note) if sent is not None else not note.startswith(note_begins(self.run))

    def _send_inputs(self, client: MlflowClient, cursor: Cursor, records: Sequence[Mapping[str, Any]]) -> None:
        digest = _digest(records)
        if records and cursor.sent.get("inputs") != digest:
            client.log_inputs(cursor.run_id, dataset_inputs(records))
            self._mark(cursor, "inputs", digest)

    def _send_state(
        self, client: MlflowClient, cursor: Cursor, description: Description, parent: Parent | None
    ) -> None:
        digest = _digest([description.state, description.ended])
        if cursor.sent.get("state") == digest:
            return
        if description.state == "running":
            client.update_run(cursor.run_id, status="RUNNING")
        else:
            ended = milliseconds(description.ended if description.ended is not None else time.time())
            client.set_terminated(cursor.run_id, _STATUS[description.state], end_time=ended)
        if parent is not None:
            update_parent(client, parent, cursor)
        self._mark(cursor, "state", digest)

    def _send_files(self, client: MlflowClient, cursor: Cursor, files: Mapping[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="orchestrator-mlflow-") as folder:
            for name, content in files.items():
                digest = hashlib.sha256(content).hexdigest()
                if cursor.sent.get(name) != digest:
                    path = Path(folder, name)
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(content)
                    client.log_artifact(cursor.run_id, str(path), os.path.dirname(name) or None)
                    self._mark(cursor, name, digest)

    def _mark(self, cursor: Cursor, name: str, digest: str) -> None:
        cursor.sent[name] = digest
        write_cursor(self.run, cursor)


def tracker(run: RunDir) -> Sender:
    """The tracker of a run."""
    return Sender(run)


def _values(record: Metric) -> Iterator[MlflowMetric]:
    """The record as MLflow metrics, with its own time: sending one again changes nothing."""
    for name, value in record.with_progress.items():
        yield MlflowMetric(limits.entity_name(name), value, milliseconds(record.time), record.iteration)


def _params(params: Mapping[str, str]) -> dict[str, str]:
    return {limits.entity_name(name): limits.truncated(value, limits.PARAM_LENGTH) for name, value in params.items()}


def _tags(tags: Mapping[str, str]) -> list[RunTag]:
    return [RunTag(limits.entity_name(name), limits.truncated(tags[name], limits.TAG_LENGTH)) for name in tags]


def _batches(items: list[_Item], size: int) -> Iterator[list[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=dict).encode()).hexdigest()
