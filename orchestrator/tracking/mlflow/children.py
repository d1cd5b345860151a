"""How the cells of a sweep are, as far as they were sent: kept beside the sweep, so that each cell that begins or ends
asks the store for itself alone, and a sweep of a thousand cells is not asked for a million runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from orchestrator.files.stored_files import read_json
from orchestrator.run_directory.events.ledger import CellsPlanned
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.tracking.mlflow.cursor import Cursor, read_cursor
from orchestrator.tracking.mlflow.limits import entity_name
from orchestrator.tracking.mlflow.sweep_summary import DEFAULT_METRICS, Child

PARENT_ID_TAG = "mlflow.parentRunId"
CELL_TAG = "orchestrator.cell"
FILE_NAME = "mlflow.cells.json"

_PER_PAGE = 500
_MOST_BYTES = 256 << 20


def children_of(
    client: MlflowClient, home: Path, parent_id: str, metric: str | None, cursor: Cursor
) -> dict[str, Child]:
    """The children of a sweep's run by their ids, that of `cursor` as the store has it now. `metric`: what the sweep
    compares by, where it says so. To be called with the sweep's lock held.

    What is kept counts for one run of the sweep and one metric; for another all children are asked for.
    """
    names = {entity_name(name) for name in (metric, *DEFAULT_METRICS) if name}
    children = _kept(home, parent_id, metric)
    if children is None:
        children = {run.info.run_id: _child(run, names) for run in _search(client, parent_id, cursor)}
    children[cursor.run_id] = _child(client.get_run(cursor.run_id), names)
    cells = {run_id: asdict(child) for run_id, child in children.items()}
    write_atomically(home / FILE_NAME, json.dumps({"parent": parent_id, "metric": metric, "cells": cells}) + "\n")
    return children


def adopted_cells(
    client: MlflowClient, home: Path, plan: CellsPlanned | None, children: Iterable[Child], cursor: Cursor
) -> list[Child]:
    """The cells of a sweep that the store of `cursor` knows although they are no children of the sweep's run: they ran
    before it was, or for another one, and nobody may ever send them again.
    """
    known = {child.run for child in children}
    names = {entity_name(name) for name in (plan.metric if plan else None, *DEFAULT_METRICS) if name}
    found = []
    for cell in plan.rows if plan else ():
        run = RunDir(home.parent.parent / str(cell.get("run")))
        own = read_cursor(run) if run.run_id not in known else None
        if own is None or own.store != cursor.store:
            continue
        try:
            stored = client.get_run(own.run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            child = _child(stored, names)
            # One that has no state yet is just made, and is about to say whose cell it is.
            if stored.info.lifecycle_stage == "active" and child.state:
                found.append(replace(child, cell=str(cell.get("name")), run=run.run_id))
    return found


def _kept(home: Path, parent_id: str, metric: str | None) -> dict[str, Child] | None:
    try:
        record: Any = read_json(home / FILE_NAME, home, _MOST_BYTES)
        if (record["parent"], record["metric"]) != (parent_id, metric):
            return None
        return {str(run_id): Child(**child) for run_id, child in record["cells"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _search(client: MlflowClient, parent_id: str, cursor: Cursor) -> list[Run]:
    found: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [cursor.experiment_id],
            filter_string=f"tags.`{PARENT_ID_TAG}` = '{parent_id}'",
            max_results=_PER_PAGE,
            page_token=token,
        )
        found += page
        token = page.token
        if not token:
            return found


def _child(run: Run, metrics: set[str]) -> Child:
    tags, measured = run.data.tags, run.data.metrics
    cell, state = tags.get(CELL_TAG, ""), tags.get("orchestrator.state", "")
    last = {name: measured[name] for name in sorted(metrics & measured.keys())}
    return Child(cell, state, run.info.status, run.info.end_time, last, tags.get("orchestrator.run_id", ""))
